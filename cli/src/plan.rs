//! `plan`: what runs take of this machine, and why.

use kin_infer::Precision;
use kin_infer::gpu::GpuBackend;
use kin_infer::resource::{ModelMemory, Profile, Resolved, ResourcePlan, bytes_in_words};
use serde_json::json;

use crate::common::{Model, PrecisionArg};
use crate::failure::{Done, Failure, Result};
use crate::output::Sink;

#[derive(clap::Args)]
#[command(after_help = "\
Each line is a name, a tab, a value, a tab, and why it is so. Runs of every command go by this plan; results are the same
bits with any. With --model, the matrices are not loaded: what they take follows from the checkpoint's shapes, what
activations take from a forward pass that allocates and does not compute.

Examples:
  kin-infer plan
  kin-infer plan --model models/all-MiniLM-L6-v2
  kin-infer plan --model models/all-MiniLM-L6-v2 --precision int8
  KIN_RESOURCE_PROFILE=interactive kin-infer plan --json")]
pub struct Args {
    /// Also say what this model takes of memory, and whether it fits: a folder, a GGUF file, or a hub id that lies in the
    /// local hub cache
    #[arg(long, value_name = "MODEL")]
    model: Option<String>,
    /// What runs are for: proof, interactive, throughput or ci. Default: KIN_RESOURCE_PROFILE, else throughput
    #[arg(long, value_name = "PROFILE", value_parser = |name: &str| name.parse::<Profile>().map_err(|e| e.to_string()))]
    profile: Option<Profile>,
    /// Threads that compute, in place of the plan's
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    threads: Option<u16>,
    #[command(flatten)]
    precision: PrecisionArg,
    /// Print one JSON object instead of lines
    #[arg(long)]
    json: bool,
}

pub fn run(args: &Args) -> Result<Done> {
    let mut plan = match args.profile {
        Some(profile) => ResourcePlan::detect(profile)?,
        None => ResourcePlan::from_env()?,
    };
    if let Some(threads) = args.threads {
        plan = plan.with_threads(threads.into());
    }
    kin_infer::init_threads(plan.embedding.threads.value);
    let memory = match &args.model {
        None => None,
        Some(model) => {
            let folder = Model { model: model.clone() }.folder()?;
            if args.precision.get() == Precision::Int8 {
                plan.embedding = plan.embedding.on(GpuBackend::Cpu);
            }
            let (memory, fitted) = ModelMemory::of(&folder, &plan, args.precision.get())?;
            plan = fitted;
            Some(memory)
        }
    };
    let mut out = Sink::stdout();
    if args.json {
        let mut value = serde_json::to_value(&plan).map_err(|e| Failure::Failed(e.to_string()))?;
        value["model"] = json!(memory);
        out.json(&value)?;
    } else {
        let mut lines = plan_lines(&plan);
        lines.extend(memory.iter().flat_map(memory_lines));
        for Line(name, value, why) in lines {
            out.line(&format!("{name}\t{value}\t{why}"))?;
        }
    }
    out.commit()?;
    Ok(Done::Whole)
}

/// A name, a value, and why it is so.
struct Line(&'static str, String, String);

fn fact(name: &'static str, value: impl ToString) -> Line {
    Line(name, value.to_string(), "as the system says".to_string())
}

fn resolved<T>(name: &'static str, resolved: &Resolved<T>, words: impl Fn(&T) -> String) -> Line {
    Line(name, words(&resolved.value), resolved.to_string())
}

fn plan_lines(plan: &ResourcePlan) -> Vec<Line> {
    let (host, memory, e, w) = (&plan.host, &plan.memory, &plan.embedding, &plan.watchdog);
    let count = |n: &usize| n.to_string();
    let yes = |on: &bool| if *on { "yes" } else { "no" }.to_string();
    let seconds = |s: &f64| format!("{s} s");
    let bytes = |n: Option<u64>| n.map_or("unknown".to_string(), bytes_in_words);
    let kinds = match (host.performance_cores, host.efficiency_cores) {
        (Some(fast), Some(slow)) => format!(" ({fast} performance, {slow} efficiency)"),
        _ => String::new(),
    };
    let cores =
        format!("{} physical{kinds}, {} of {} logical", host.physical_cores, host.allowed_cores, host.logical_cores);
    let quota = host.cgroup.cpu_quota.map_or("none".to_string(), |quota| format!("{quota} CPUs"));
    let group = memory.cgroup_limit.map_or("none".to_string(), bytes_in_words);
    let accelerator = format!("{:?}, {}", plan.accelerator.backend, plan.accelerator.device).to_lowercase();
    vec![
        Line("profile", plan.profile.to_string(), "what runs are for".to_string()),
        fact("cores", cores),
        fact("CPU quota", quota),
        resolved("instruction set", &host.isa, String::clone),
        fact("memory", format!("{}, {} available", bytes(memory.total), bytes(memory.available))),
        fact("control group's memory", group),
        resolved("this process may take", &memory.rss_cap, |cap| bytes(*cap)),
        resolved("accelerator", &plan.accelerator.mode, |_| accelerator.clone()),
        resolved("threads", &e.threads, count),
        resolved("batches side by side", &e.workers, count),
        resolved("tokens of a text", &e.max_seq_len, |n| n.map_or("as the model".to_string(), |n| n.to_string())),
        resolved("tokens of a batch", &e.max_batch_tokens, count),
        resolved("attention area of a batch", &e.max_attention_area, count),
        resolved("tokens sorted over", &e.window_tokens, count),
        resolved("memory of the run", &e.memory_bytes, |cap| bytes(*cap)),
        resolved("memory of activations", &e.activation_bytes, |room| bytes(*room)),
        resolved("out of memory: one by one", &e.oom_retry, yes),
        resolved("not finite", &e.nonfinite_policy, |_| "the text fails".to_string()),
        resolved("kernels", &e.kernels, |k| {
            format!("{}, {} for blocks, {}", k.floats, k.integers, if k.exact { "exact" } else { "not exact" })
        }),
        resolved("watchdog", &w.enabled, yes),
        resolved("end without a parent", &w.orphan_check, yes),
        resolved("end after", &w.max_secs, |s| s.map_or("never".to_string(), |s| seconds(&s))),
        resolved("end below", &w.min_rate, |r| format!("{r} texts a second")),
        resolved("rate taken over", &w.floor_window_secs, seconds),
        resolved("no rate before", &w.floor_grace_secs, seconds),
    ]
}

fn memory_lines(memory: &ModelMemory) -> Vec<Line> {
    let bytes = |n: &u64| bytes_in_words(*n);
    vec![
        resolved("model: process", &memory.process, bytes),
        resolved("model: matrices", &memory.matrices, bytes),
        resolved("model: vectors", &memory.vectors, bytes),
        resolved("model: embedding tables", &memory.tables, bytes),
        resolved("model: loading", &memory.loading, bytes),
        resolved("model: activations", &memory.activations, bytes),
        resolved("model: scratch", &memory.scratch, bytes),
        resolved("model: keys and values a token", &memory.kv_bytes_per_token, |n| {
            n.map_or("none".to_string(), |n| format!("{n} bytes"))
        }),
        resolved("model: peak", &memory.peak, bytes),
        resolved("model: fits", &memory.fits, |fits| {
            fits.map_or("unknown", |fits| if fits { "yes" } else { "no" }).to_string()
        }),
    ]
}
