//! `fingerprint`: one hash of a model's outputs.

use crate::common::{Compute, Head, Model, PrecisionArg};
use crate::failure::{Done, Result};
use crate::output::Sink;

#[derive(clap::Args)]
#[command(after_help = "\
Prints 64 hexadecimal digits, two spaces and the model as it was named. Two machines that print the same digits compute
the same bits; the instruction set and the number of threads do not change them.

Example:
  KIN_INFER_CPU_ISA=scalar kin-infer fingerprint --model M --threads 1")]
pub struct Args {
    #[command(flatten)]
    model: Model,
    #[command(flatten)]
    precision: PrecisionArg,
    #[command(flatten)]
    compute: Compute,
}

pub fn run(args: &Args) -> Result<Done> {
    let model = args.compute.load_transformer(&args.model, Head::Auto, &args.precision)?;
    let hash = kin_infer::fingerprint(&model)?;
    let mut out = Sink::stdout();
    out.line(&format!("{}  {}", kin_infer::hex(&hash), args.model.model))?;
    out.commit()?;
    Ok(Done::Whole)
}
