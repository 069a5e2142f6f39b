//! Compiles the kernels with the emulator where that is possible: a build for this very machine, x86-64 or aarch64 Linux,
//! with a C++ compiler. Elsewhere the crate says that it cannot run kernels.

use std::path::{Path, PathBuf};
use std::{env, fs};

fn main() {
    println!("cargo::rustc-check-cfg=cfg(emulated)");
    let kernels = Path::new(&env::var("CARGO_MANIFEST_DIR").unwrap_or_default()).join("..");
    println!("cargo::rerun-if-changed={}", kernels.display());
    if let Err(why) = compile(&kernels) {
        println!("cargo::warning=GPU kernels are not emulated, and their tests are skipped: {why}");
        return;
    }
    println!("cargo::rustc-cfg=emulated");
}

fn compile(kernels: &Path) -> Result<(), String> {
    let var = |name: &str| env::var(name).map_err(|e| format!("{name}: {e}"));
    let (host, target) = (var("HOST")?, var("TARGET")?);
    if host != target {
        return Err(format!("a build for {target} on {host}"));
    }
    if var("CARGO_CFG_TARGET_OS")? != "linux" || !["x86_64", "aarch64"].contains(&&*var("CARGO_CFG_TARGET_ARCH")?) {
        return Err(format!("no emulator for {target}"));
    }
    let out = PathBuf::from(var("OUT_DIR")?);
    let unit = out.join("kernels.cpp");
    fs::write(&unit, translation_unit(kernels)?).map_err(|e| e.to_string())?;
    let mut build = cc::Build::new();
    build
        .cpp(true)
        .std("c++17")
        .file(&unit)
        .include(kernels)
        .include(kernels.join("emulator"))
        .opt_level(2)
        .debug(false);
    // Rounding is the kernels' matter: no contraction, and fma as the instruction where there is one.
    build.flag("-ffp-contract=off").flag("-Wno-unknown-pragmas").warnings(true).extra_warnings(true);
    #[cfg(target_arch = "x86_64")]
    if std::is_x86_feature_detected!("fma") {
        build.flag("-mfma");
    }
    build.try_compile("kin_infer_kernels").map_err(|e| e.to_string())
}

/// The kernels' files, and a table of the kernels in them.
fn translation_unit(kernels: &Path) -> Result<String, String> {
    let entries = fs::read_dir(kernels).map_err(|e| e.to_string())?.flatten();
    let mut files: Vec<PathBuf> =
        entries.map(|e| e.path()).filter(|p| p.extension().is_some_and(|e| e == "h")).collect();
    files.sort();
    let (mut includes, mut table) = (String::new(), String::new());
    for file in &files {
        let name = file.file_name().and_then(|n| n.to_str()).ok_or("a file name that is no text")?;
        includes.push_str(&format!("#include \"{name}\"\n"));
    }
    // What the preprocessor makes of the kernels: each definition is `static void NAME(`, after the mark of its kind.
    for file in &files {
        let text = fs::read_to_string(file).map_err(|e| e.to_string())?;
        for (each, threads, name) in kernels_in(&text) {
            table.push_str(&format!("    KERNEL_ENTRY({name}, {threads}, {each}),\n"));
        }
    }
    Ok(format!("{includes}#include \"launch.h\"\nconst emu::Entry emu::entries[] = {{\n{table}    {{}}}};\n"))
}

/// Kernels of a file: whether threads never meet, threads of a group, name. Those that a macro defines for several types
/// are found by its uses.
fn kernels_in(text: &str) -> Vec<(bool, String, String)> {
    let joined = text.replace("\\\n", " ");
    let mut found = Vec::new();
    for line in joined.lines() {
        let families = line.strip_prefix("#define ").and_then(|rest| rest.split_once("_KERNELS(suffix, TYPE)"));
        if let Some((family, body)) = families {
            for use_of in joined.lines().filter_map(|l| l.strip_prefix(&format!("{family}_KERNELS("))) {
                let suffix = use_of.split(',').next().unwrap_or_default();
                found.extend(definitions(body).map(|(e, t, n)| (e, t, n.replace("##suffix", suffix))));
            }
        } else if !line.trim_start().starts_with("//") && !line.starts_with('#') {
            found.extend(definitions(line));
        }
    }
    found
}

/// `KERNEL(threads) name(` and `KERNEL_EACH(threads) name(` in a text.
fn definitions(text: &str) -> impl Iterator<Item = (bool, String, String)> + '_ {
    text.match_indices("KERNEL").filter_map(|(at, _)| {
        let rest = &text[at + "KERNEL".len()..];
        let (each, rest) = rest.strip_prefix("_EACH").map_or((false, rest), |r| (true, r));
        let (threads, rest) = rest.strip_prefix('(')?.split_once(')')?;
        let (name, _) = rest.trim_start().split_once('(')?;
        Some((each, threads.to_string(), name.to_string()))
    })
}
