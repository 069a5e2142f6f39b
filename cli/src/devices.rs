//! `devices` and `env`: what the machine has, and what the environment says.

use kin_infer::env::VARIABLES;
use kin_infer::gpu::{GpuDeviceInfo, absent_backends, discover_devices};
use kin_infer::resource::detect_host;
use serde_json::{Value, json};

use crate::failure::{Done, Result};
use crate::output::Sink;

#[derive(clap::Args)]
#[command(after_help = "\
The first device is the one that `--device auto` takes. A GPU backend of this build that finds no device says why. CPU
matrix products are made by `pure-rust` kernels, whose bits are the same everywhere, or by `accelerate` (macOS).

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
    let products = kin_infer::cpu::products()?;
    let (devices, absent) = (discover_devices(), absent_backends());
    let mut out = Sink::stdout();
    if args.json {
        let devices: Vec<Value> = devices.iter().map(json_of).collect();
        let absent: Vec<Value> =
            absent.iter().map(|a| json!({"backend": a.backend.to_string(), "reason": a.reason})).collect();
        out.json(&json!({
            "devices": devices, "absent": absent, "instruction_sets": sets, "selected": selected, "products": products,
            "physical_cores": cores
        }))?;
    } else {
        for d in devices {
            out.line(&format!("device\t{}: {} ({}), {}", d.backend, d.name, d.detail, extent(&d)))?;
        }
        for a in absent {
            out.line(&format!("no device\t{}: {}", a.backend, a.reason))?;
        }
        out.line(&format!("matrix products\t{products}"))?;
        out.line(&format!("instruction sets\t{}", sets.join(", ")))?;
        out.line(&format!("selected\t{selected}"))?;
        out.line(&format!("physical cores\t{cores}"))?;
    }
    out.commit()?;
    Ok(Done::Whole)
}

fn json_of(d: &GpuDeviceInfo) -> Value {
    json!({
        "backend": d.backend.to_string(), "name": d.name, "detail": d.detail, "threads": d.threads, "memory": d.memory
    })
}

/// A GPU's memory, or a CPU's threads.
fn extent(d: &GpuDeviceInfo) -> String {
    match d.memory {
        Some(bytes) => format!("{:.1} GiB", bytes as f64 / (1u64 << 30) as f64),
        None => format!("{} thread(s)", d.threads),
    }
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
