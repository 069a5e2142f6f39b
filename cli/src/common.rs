//! Options that several commands share, and the talk on stderr.

use std::path::PathBuf;
use std::sync::Arc;

use clap::ValueEnum;
use kin_infer::arch::{HeadChoice, HeadSpec};
use kin_infer::gpu::{GpuBackend, GpuCompute, PassedOver, choose_compute, create_compute_for, create_compute_on};
use kin_infer::modules::{ModelFolder, PoolingMode};
use kin_infer::resource::ResourcePlan;
use kin_infer::{BertConfig, BertModel, LoadOptions};

use crate::failure::{Failure, Result};
pub use crate::talk::tell;

#[derive(clap::Args)]
pub struct Model {
    /// A folder with config.json beside the weights, a GGUF file, or a hub id such as `owner/name` that lies in the local
    /// hub cache (see `kin-infer env` for where that is). A build with the feature `download` fetches an id that is not
    /// there, unless HF_HUB_OFFLINE is set
    #[arg(long, value_name = "MODEL")]
    pub model: String,
}

impl Model {
    /// The folder the argument names.
    pub fn folder(&self) -> Result<PathBuf> {
        crate::download::resolve(&self.model)
    }
}

#[derive(clap::Args)]
pub struct Compute {
    /// Threads that compute. Default: what `kin-infer plan` says, usually one a physical core. Fewer leave the machine to
    /// others; results are the same bits with any number
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub threads: Option<u16>,
    /// Where to compute: `auto` takes the best device there is (`kin-infer devices` lists them), `cpu` the CPU always.
    /// `cuda` and `metal` fail where the build has no such backend or it finds no device; they never fall back. A GPU
    /// gives the CPU's bits
    #[arg(long, value_enum, default_value_t = Device::Auto)]
    pub device: Device,
    /// Tell nothing on stderr but errors: no progress bar, no summary, no notes
    #[arg(long)]
    pub quiet: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Device {
    Auto,
    Cpu,
    Cuda,
    Metal,
}

#[derive(clap::Args)]
pub struct PrecisionArg {
    /// How precisely the model's layers are computed
    #[arg(long, value_enum, default_value_t = Precision::Exact)]
    precision: Precision,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Precision {
    /// As the model's weights are
    Exact,
    /// Linear layers in 8-bit integers, on the CPU: several times faster, a little less precise. The bits are the same on
    /// every machine too. Vectors that are compared have to be made with the same precision
    Int8,
}

impl PrecisionArg {
    pub fn get(&self) -> kin_infer::Precision {
        match self.precision {
            Precision::Exact => kin_infer::Precision::Exact,
            Precision::Int8 => kin_infer::Precision::Int8,
        }
    }
}

/// What a text becomes, in place of what the folder says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Pooling {
    /// One vector a token, for late interaction (ColBERT): what the folder would pool
    None,
    /// The mean of the token vectors
    Mean,
    /// The first token's vector
    Cls,
    /// The largest value of each feature
    Max,
    /// The last token's vector
    Last,
    /// The sum of the token vectors divided by the square root of their number
    MeanSqrtLen,
    /// The mean weighted by position: 1, 2, 3, ...
    WeightedMean,
    /// A sparse vector over the vocabulary, from a masked language model's head
    Splade,
}

impl Pooling {
    /// The mode, of those that make one dense vector.
    pub fn mode(self) -> Option<PoolingMode> {
        Some(match self {
            Self::None | Self::Splade => return None,
            Self::Mean => PoolingMode::Mean,
            Self::Cls => PoolingMode::Cls,
            Self::Max => PoolingMode::Max,
            Self::Last => PoolingMode::LastToken,
            Self::MeanSqrtLen => PoolingMode::MeanSqrtLen,
            Self::WeightedMean => PoolingMode::WeightedMean,
        })
    }
}

/// Which head a model is loaded with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum Head {
    /// The classifier, where config.json names one; else what the command's help says
    #[default]
    Auto,
    /// The masked language model's: scores of every vocabulary entry for each token
    MaskedLm,
    /// The decoder's: scores of every vocabulary entry for the token after each
    CausalLm,
}

impl Head {
    /// The library's choice, `auto` for `auto`.
    pub fn choice(self, auto: HeadChoice) -> HeadChoice {
        match self {
            Self::Auto => auto,
            Self::MaskedLm => HeadChoice::MaskedLm,
            Self::CausalLm => HeadChoice::Configured,
        }
    }

    /// Refuses a model that was loaded without the head that was asked for.
    pub fn check(self, model: &BertModel) -> Result<()> {
        if self == Self::CausalLm && !matches!(model.spec().head, HeadSpec::CausalLm { .. }) {
            let named = model.config().architectures.clone().unwrap_or_default().join(", ");
            let why = "no decoder's head: `architectures` in config.json, or what stands for a GGUF file's \
                       `general.architecture`, has to name a class ending in ForCausalLM";
            return Err(Failure::Failed(format!("--head causal-lm: {why}, it has [{named}]")));
        }
        Ok(())
    }
}

impl Compute {
    /// Sets up the threads and the backend. A GPU backend that `auto` passes over is told about.
    pub fn open(&self) -> Result<Arc<dyn GpuCompute>> {
        self.open_for(kin_infer::Precision::Exact)
    }

    /// As [`open`](Self::open); `auto` takes the best device that has the precision.
    pub fn open_for(&self, precision: kin_infer::Precision) -> Result<Arc<dyn GpuCompute>> {
        kin_infer::init_threads(self.plan()?.embedding.threads.value);
        let backend = match self.device {
            Device::Auto if precision != kin_infer::Precision::Exact => return Ok(create_compute_for(precision)?),
            Device::Auto => {
                let (compute, passed_over) = choose_compute()?;
                for PassedOver { backend, reason } in passed_over {
                    self.note(&format!("note: {backend} is not used ({reason}); computing on {}", compute.backend()));
                }
                return Ok(compute);
            }
            Device::Cpu => GpuBackend::Cpu,
            Device::Cuda => GpuBackend::Cuda,
            Device::Metal => GpuBackend::Metal,
        };
        create_compute_on(backend)
            .map_err(|e| Failure::Failed(format!("--device {backend}: {e}; `auto` and `cpu` work here")))
    }

    /// The plan of this process: the environment's profile, with the threads that were asked for.
    pub fn plan(&self) -> Result<ResourcePlan> {
        let plan = ResourcePlan::current()?;
        Ok(match self.threads {
            Some(n) => plan.with_threads(n.into()),
            None => plan,
        })
    }

    /// The transformer of a folder, without its tokenizer and, unless `head` names it, without a head for tokens.
    pub fn load_transformer(&self, model: &Model, head: Head, precision: &PrecisionArg) -> Result<BertModel> {
        let compute = self.open_for(precision.get())?;
        let folder = ModelFolder::read(&model.folder()?)?.transformer_dir;
        let config = BertConfig::from_folder(&folder)?;
        let head_choice = head.choice(HeadChoice::Vectors);
        let options = LoadOptions { head: head_choice, precision: precision.get(), ..LoadOptions::default() };
        let model = BertModel::load_with_options(&folder, config, compute, options)?;
        head.check(&model)?;
        Ok(model)
    }

    /// A note on stderr, unless `--quiet`.
    pub fn note(&self, text: &str) {
        if !self.quiet {
            tell(text);
        }
    }
}
