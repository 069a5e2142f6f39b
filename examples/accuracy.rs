//! How near the vectors of smaller weights and of `--precision int8` come to those of f32, over pieces of this
//! repository's source.
//!
//! `cargo run --release --example accuracy [-- --update] [--texts N] [--model DIR]` prints the table of docs/accuracy.md;
//! `--update` writes it there.

#[path = "../tests/accuracy/measure.rs"]
mod measure;

use std::error::Error;
use std::path::{Path, PathBuf};

use kin_infer::Embedder;
use measure::{KINDS, agreement, load, snippets};

const BEGIN: &str = "<!-- table:begin -->\n";
const END: &str = "<!-- table:end -->";

/// A folder that is removed at the end.
struct Scratch(PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0); // what is left in a temporary folder does no harm
    }
}

fn table(model: &Path, count: usize) -> Result<String, Box<dyn Error>> {
    let scratch = Scratch(std::env::temp_dir().join(format!("kin-infer-accuracy-{}", std::process::id())));
    let texts = snippets(count)?;
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    let embedder = Embedder::load(model)?;
    let reference = embedder.embed(&texts)?;
    let mut lines = vec![
        "| | mean cosine | smallest cosine | of the ten nearest | weights |".to_string(),
        "|---|---|---|---|---|".to_string(),
        format!("| f32 | 1 | 1 | 1 | {:.1} MB |", megabytes(&embedder)),
    ];
    for (kind, name) in KINDS {
        let embedder = load(kind, model, &scratch.0)?;
        let of = agreement(&reference, &embedder.embed(&texts)?);
        let size = megabytes(&embedder);
        lines.push(format!("| {name} | {:.6} | {:.6} | {:.3} | {size:.1} MB |", of.mean, of.smallest, of.overlap));
        eprintln!("{}", lines[lines.len() - 1]);
    }
    Ok(lines.join("\n") + "\n")
}

/// Memory that the matrices take.
fn megabytes(embedder: &Embedder) -> f64 {
    embedder.model().weight_bytes() as f64 / 1e6
}

fn main() -> Result<(), Box<dyn Error>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let (mut model, mut count, mut update) = (root.join("models/all-MiniLM-L6-v2"), 500, false);
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().ok_or(format!("{argument} takes a value"));
        match argument.as_str() {
            "--update" => update = true,
            "--texts" => count = value()?.parse()?,
            "--model" => model = value()?.into(),
            other => return Err(format!("unknown argument {other}").into()),
        }
    }
    kin_infer::init_performance_threads();
    let table = table(&model, count)?;
    print!("{table}");
    if update {
        let file = root.join("docs/accuracy.md");
        let page = std::fs::read_to_string(&file)?;
        let (before, rest) = page.split_once(BEGIN).ok_or("docs/accuracy.md has no table")?;
        let (_, after) = rest.split_once(END).ok_or("docs/accuracy.md has no end of the table")?;
        std::fs::write(file, format!("{before}{BEGIN}{table}{END}{after}"))?;
    }
    Ok(())
}
