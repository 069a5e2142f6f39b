//! Plans from given machines.

use super::cgroup::CgroupLimits;
use super::host::{Cores, Kernels, host_info};
use super::memory::memory_info;
use super::*;
use crate::gpu::GpuBackend;
use crate::watchdog::EmbedConfig;

fn machine(cores: usize, gib: u64) -> (HostInfo, MemoryInfo, AcceleratorInfo) {
    let cores = Cores { logical: 2 * cores, allowed: 2 * cores, physical: cores, performance: None, efficiency: None };
    let (isa, integers) = (Resolved::new("avx2".to_string(), "the widest"), "avx2".to_string());
    let kernels = Kernels { isa, integers, products: "pure-rust".to_string(), exact: true };
    let host = host_info(kernels, cores, CgroupLimits::default());
    let process = ProcessMemory { resident: Some(0), peak: Some(0) };
    let memory = memory_info(Some(gib << 30), Some(gib << 30), &CgroupLimits::default(), process);
    let mode = Resolved::new(HybridMode::CpuOnly, "no accelerator");
    let accelerator = AcceleratorInfo { backend: AcceleratorBackend::None, device: "x86_64".to_string(), mode };
    (host, memory, accelerator)
}

fn plan(profile: Profile, cores: usize) -> ResourcePlan {
    let (host, memory, accelerator) = machine(cores, 16);
    ResourcePlan::for_profile(profile, host, memory, accelerator, &profile.watchdog())
}

#[test]
fn profiles_differ_in_what_they_take() {
    let of = |profile| {
        let plan = plan(profile, 8);
        let e = &plan.embedding;
        let memory = e.memory_bytes.value.unwrap() >> 20;
        (e.threads.value, e.workers.value, e.max_batch_tokens.value, e.window_tokens.value, memory, e.oom_retry.value)
    };
    assert_eq!(of(Profile::Proof), (1, 1, 512, 512, 8191, false));
    assert_eq!(of(Profile::Interactive), (7, 7, 256, 2048, 4095, true));
    assert_eq!(of(Profile::Throughput), (8, 8, 512, 65_536, 13_107, true));
    assert_eq!(of(Profile::Ci), (4, 4, 512, 8192, 8191, true));
    assert_eq!(plan(Profile::Interactive, 1).embedding.threads.value, 1);
}

#[test]
fn the_same_inputs_give_the_same_plan_and_it_survives_json() {
    for profile in [Profile::Proof, Profile::Interactive, Profile::Throughput, Profile::Ci] {
        let one = plan(profile, 4);
        assert_eq!(one, plan(profile, 4));
        let json = serde_json::to_value(&one).unwrap();
        assert_eq!(json["schema_version"], 1);
        assert_eq!(json["profile"], profile.name());
        assert_eq!(json["embedding"]["threads"]["inputs"]["host.threads"], 4);
        assert_eq!(serde_json::from_value::<ResourcePlan>(json).unwrap(), one);
    }
}

#[test]
fn every_resolved_value_has_a_reason() {
    fn check(path: &str, value: &serde_json::Value, found: &mut usize) {
        let Some(map) = value.as_object() else { return };
        if map.contains_key("value") {
            *found += 1;
            assert!(!map["reason"].as_str().unwrap().is_empty() && map["inputs"].is_object(), "{path}");
            return;
        }
        map.iter().for_each(|(name, value)| check(&format!("{path}.{name}"), value, found));
    }
    let mut found = 0;
    check("plan", &serde_json::to_value(plan(Profile::Throughput, 2)).unwrap(), &mut found);
    assert_eq!(found, 21);
}

#[test]
fn threads_that_were_asked_for_are_taken() {
    let plan = plan(Profile::Throughput, 8).with_threads(3);
    assert_eq!((plan.embedding.threads.value, plan.embedding.workers.value), (3, 3));
    assert_eq!(plan.embedding.threads.reason, "asked for");
}

#[test]
fn an_accelerator_runs_one_batch_at_a_time() {
    let (host, memory, mut accelerator) = machine(8, 16);
    accelerator.mode.value = HybridMode::Accelerator;
    let plan = ResourcePlan::for_profile(Profile::Throughput, host, memory, accelerator, &EmbedConfig::disabled());
    assert_eq!((plan.embedding.threads.value, plan.embedding.workers.value), (8, 1));
    // What counts is where a model was loaded.
    let workers = |backend| plan.embedding.clone().on(backend).workers.value;
    assert_eq!((workers(GpuBackend::Cpu), workers(GpuBackend::Cuda), workers(GpuBackend::Metal)), (8, 1, 1));
}

#[test]
fn a_plan_says_whether_results_are_exact() {
    let kernels = |products: &str, exact, mode| {
        let (mut host, memory, mut accelerator) = machine(8, 16);
        (host.products, host.exact, accelerator.mode.value) = (products.to_string(), exact, mode);
        accelerator.device = "H".to_string();
        ResourcePlan::for_profile(Profile::Throughput, host, memory, accelerator, &EmbedConfig::disabled())
            .embedding
            .kernels
            .value
    };
    let of = |plan: KernelPlan| (plan.floats, plan.exact);
    assert_eq!(of(kernels("pure-rust", true, HybridMode::CpuOnly)), ("avx2".to_string(), true));
    assert_eq!(of(kernels("accelerate", false, HybridMode::CpuOnly)), ("avx2 and accelerate".to_string(), false));
    assert_eq!(of(kernels("accelerate", false, HybridMode::Accelerator)), ("H".to_string(), true));
}

#[test]
fn the_watchdogs_plan_is_its_configuration_and_says_what_was_set() {
    let (host, memory, accelerator) = machine(8, 16);
    let config = EmbedConfig { min_rate: 5.0, max: None, ..Profile::Ci.watchdog() };
    let plan = ResourcePlan::for_profile(Profile::Ci, host, memory, accelerator, &config);
    assert_eq!(plan.watchdog.config(), config);
    assert_eq!(plan.watchdog.min_rate.reason, "as the caller says");
    assert_eq!(plan.watchdog.floor_window_secs.reason, "ci: the default");
    assert!(!Profile::Interactive.watchdog().enabled);
}

/// A variable is named where it is set, to whatever value, and nowhere else.
#[test]
fn reasons_of_the_watchdog_name_what_is_set() {
    let of = |profile: Profile, config: EmbedConfig, set: &[&str]| {
        let plan = WatchdogPlan::new(profile, &config, |variable| set.contains(&variable.name));
        let reasons =
            [&plan.enabled.reason, &plan.max_secs.reason, &plan.min_rate.reason, &plan.floor_grace_secs.reason];
        reasons.map(String::clone)
    };
    let usual = || Profile::Ci.watchdog();
    let (set, default) = (|name: &str| format!("{name} is set"), "ci: the default".to_string());
    let named = of(Profile::Ci, usual(), &["KIN_EMBED_MIN_RATE"]);
    assert_eq!(named, [default.clone(), default.clone(), set("KIN_EMBED_MIN_RATE"), default.clone()]);
    let off = of(Profile::Ci, EmbedConfig::disabled(), &["KIN_EMBED_WATCHDOG"]);
    let nothing = || "nothing is watched".to_string();
    assert_eq!(off, [set("KIN_EMBED_WATCHDOG"), nothing(), nothing(), nothing()]);
    let on = of(Profile::Interactive, EmbedConfig::production(), &["KIN_EMBED_WATCHDOG"]);
    let default = || "interactive: the default".to_string();
    assert_eq!(on, [set("KIN_EMBED_WATCHDOG"), default(), default(), default()]);
    let config = EmbedConfig { orphan_check: false, ..usual() };
    let plan = WatchdogPlan::new(Profile::Ci, &config, |variable| variable.name == "KIN_EMBED_ORPHAN_CHECK");
    assert_eq!(plan.orphan_check.reason, "KIN_EMBED_ORPHAN_CHECK is set");
}

#[test]
fn profiles_have_names() {
    assert_eq!(" CI ".parse::<Profile>().unwrap(), Profile::Ci);
    let message = "fast".parse::<Profile>().unwrap_err().to_string();
    assert_eq!(message, "KIN_RESOURCE_PROFILE: expected proof, interactive, throughput, ci, found `fast`");
}

#[test]
fn this_machine_has_a_plan() {
    let plan = ResourcePlan::detect(Profile::Throughput).unwrap();
    assert_eq!(plan.embedding.threads.value, plan.host.threads.value);
    assert_eq!(plan.embedding.kernels.value.floats, crate::cpu::selected().unwrap().name());
}
