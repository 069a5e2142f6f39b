//! `devices` and `env`: what the machine has, and what the environment says.

use kin_infer::env::VARIABLES;
use kin_infer::gpu::discover_devices;
use kin_infer::resource::detect_host;
use serde_json::{Value, json};

use crate::failure::{Done, Result};
use crate::output::Sink;

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  kin-infer devices
  KIN_INFER_CPU_ISA=avx2 kin-infer devices --json")]
pub struct Args {
    /// Print one JSON object instead of lines of name, tab, value
    #[arg(long)]
    json: bool,
}

#[derive(clap::Args)]
#[command(after_help = "\
Example:
  kin-infer env --json")]
pub struct EnvArgs {
    /// Print one JSON object a variable instead of text
    #[arg(long)]
    json: bool,
}

pub fn run(args: &Args) -> Result<Done> {
    kin_infer::init_performance_threads();
    let sets: Vec<&str> = kin_infer::cpu::available().iter().map(|k| k.name()).collect();
    let selected = kin_infer::cpu::selected()?.name();
    let cores = detect_host()?.physical_cores;
    let devices = discover_devices();
    let mut out = Sink::stdout();
    if args.json {
        let devices: Vec<Value> = devices
            .iter()
            .map(|d| {
                let backend = d.backend.to_string();
                json!({"backend": backend, "name": d.name, "detail": d.detail, "threads": d.threads})
            })
            .collect();
        out.json(&json!({
            "devices": devices, "instruction_sets": sets, "selected": selected, "physical_cores": cores
        }))?;
    } else {
        for d in devices {
            out.line(&format!("device\t{}: {} ({}), {} thread(s)", d.backend, d.name, d.detail, d.threads))?;
        }
        out.line(&format!("instruction sets\t{}", sets.join(", ")))?;
        out.line(&format!("selected\t{selected}"))?;
        out.line(&format!("physical cores\t{cores}"))?;
    }
    out.commit()?;
    Ok(Done::Whole)
}

pub fn run_env(args: &EnvArgs) -> Result<Done> {
    let mut out = Sink::stdout();
    for v in VARIABLES {
        let value = v.value();
        if args.json {
            out.json(&json!({
                "name": v.name, "values": v.values, "default": v.default, "purpose": v.purpose, "value": value
            }))?;
        } else {
            let now = value.map_or("is not set".to_string(), |value| format!("= {value}"));
            out.line(&format!(
                "{} {now}\n  values   {}\n  default  {}\n  {}\n",
                v.name, v.values, v.default, v.purpose
            ))?;
        }
    }
    out.commit()?;
    Ok(Done::Whole)
}
