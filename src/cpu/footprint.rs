//! [`Footprint`]: a backend that computes nothing and accounts for the memory that [`CpuCompute`] would take.
//!
//! The forward pass itself runs on it, so that what a model needs is never written down a second time.
//!
//! [`CpuCompute`]: super::CpuCompute

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard};

use super::attention;
use super::memory::{buffer_bytes, class, resident, with_slack};
use super::packed::{PackedMatrix, Packing};
use super::simd::PANEL;
use crate::error::Result;
use crate::gpu::{
    Activation, AttentionShape, Buffer, Columns, Epilogue, GpuBackend, GpuCompute, GpuDeviceInfo, IndexBuffer, KvStore,
    Norm, PoolingMode, Precision, Rope, ScoreBias, Segments, Slices, StoredAttention, Table, Weight,
};
use crate::weights::Tensor;

/// Bytes of memory, by what takes them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Account {
    /// Matrices, packed.
    pub matrices: usize,
    /// Vectors and small tables that were uploaded.
    pub vectors: usize,
    /// Embedding tables, in their files.
    pub tables: usize,
    /// Pages of the files that the largest matrix is packed from.
    pub loading: usize,
    /// The most that activations take at once, what is kept for reuse included.
    pub activations: usize,
    /// The most that one thread takes beside: for attention, and for rows that are quantised.
    pub scratch: usize,
}

/// See the module's documentation.
pub(crate) struct Footprint {
    /// Holds what is uploaded: values that a model keeps.
    real: Arc<dyn GpuCompute>,
    account: Mutex<Account>,
    buffers: Arc<Mutex<Buffers>>,
}

/// Activation buffers as the pool of the CPU backend would hold them, in bytes.
#[derive(Default)]
struct Buffers {
    in_use: usize,
    most_in_use: usize,
    /// Of each class, what is in use and the most that was.
    classes: BTreeMap<usize, (usize, usize)>,
}

/// A buffer's class and bytes, for as long as it is there.
struct Charge {
    class: usize,
    bytes: usize,
    buffers: Arc<Mutex<Buffers>>,
}

impl Drop for Charge {
    fn drop(&mut self) {
        let mut buffers = locked(&self.buffers);
        buffers.in_use -= self.bytes;
        if let Some((in_use, _)) = buffers.classes.get_mut(&self.class) {
            *in_use -= self.bytes;
        }
    }
}

fn locked<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

impl Buffers {
    fn add(&mut self, class: usize, bytes: usize) {
        self.in_use += bytes;
        self.most_in_use = self.most_in_use.max(self.in_use);
        let (in_use, most) = self.classes.entry(class).or_default();
        *in_use += bytes;
        *most = (*most).max(*in_use);
    }

    /// What the pool holds: each class serves only itself, and some more may be left over.
    fn held(&self) -> usize {
        self.classes.values().map(|(_, most)| most).sum::<usize>().max(with_slack(self.most_in_use))
    }
}

impl Footprint {
    /// Accounts for what models take that `real` computes.
    pub fn over(real: Arc<dyn GpuCompute>) -> Self {
        Self { real, account: Mutex::default(), buffers: Arc::default() }
    }

    /// What was taken so far.
    pub fn account(&self) -> Account {
        Account { activations: locked(&self.buffers).held(), ..*self.lock() }
    }

    fn lock(&self) -> MutexGuard<'_, Account> {
        locked(&self.account)
    }

    fn scratch(&self, bytes: usize) {
        let mut account = self.lock();
        account.scratch = account.scratch.max(bytes);
    }
}

impl GpuCompute for Footprint {
    fn backend(&self) -> GpuBackend {
        GpuBackend::Cpu
    }

    fn device(&self) -> GpuDeviceInfo {
        self.real.device()
    }

    fn alloc(&self, len: usize) -> Result<Buffer> {
        let (class, bytes) = (class(len), buffer_bytes(len));
        locked(&self.buffers).add(class, bytes);
        Ok(Buffer::new(len, Charge { class, bytes, buffers: Arc::clone(&self.buffers) }))
    }

    fn upload(&self, values: &[f32]) -> Result<Buffer> {
        self.lock().vectors += buffer_bytes(values.len());
        self.real.upload(values)
    }

    fn upload_index(&self, values: &[u32]) -> Result<IndexBuffer> {
        self.real.upload_index(values)
    }

    fn read(&self, _: &Buffer, out: &mut [f32]) -> Result<()> {
        out.fill(0.0);
        Ok(())
    }

    fn is_exact(&self) -> bool {
        self.real.is_exact()
    }

    fn prepare_weight(&self, parts: &[Tensor]) -> Result<Weight> {
        self.prepare_weight_as(parts, Precision::Exact)
    }

    fn prepare_weight_as(&self, parts: &[Tensor], precision: Precision) -> Result<Weight> {
        let (n, k) = (parts.iter().map(|t| t.shape()[0]).sum(), parts[0].shape()[1]);
        // On the CPU, what is not exact is a BLAS.
        let packing = Packing::of(parts, precision, !self.is_exact())?;
        let buffers = packing.bytes(n, k);
        let files = parts.iter().map(Tensor::resident_bytes).sum();
        let mut account = self.lock();
        account.matrices += buffers.iter().map(|bytes| resident(*bytes, *bytes)).sum::<usize>();
        account.loading = account.loading.max(files);
        Ok(Weight::new(n, k, buffers.iter().sum(), packing))
    }

    fn prepare_table(&self, tensor: &Tensor) -> Result<Table> {
        self.lock().tables += tensor.resident_bytes();
        self.real.prepare_table(tensor)
    }

    fn matmul(&self, _: &Buffer, rows: usize, weight: &Weight, _: Epilogue, _: &mut Buffer) -> Result<()> {
        // A matrix of this backend's own is of a model that was not loaded.
        let packing = weight.storage::<Packing>().cloned();
        let packing = packing.or_else(|_| weight.storage::<PackedMatrix>().map(PackedMatrix::packing))?;
        self.scratch(packing.activation_bytes(rows, weight.k()));
        Ok(())
    }

    fn attention(&self, _: Columns, _: Columns, _: Columns, s: &AttentionShape, _: &mut Buffer) -> Result<()> {
        let longest = s.segments.iter().map(|segment| segment.len()).max().unwrap_or(0);
        let relative = match &s.bias {
            ScoreBias::Disentangled(d) => {
                let tables = [d.position_keys, d.position_queries].into_iter().flatten();
                tables.map(|t| t.len() / (s.heads * s.head_dim).max(1)).max().unwrap_or(0)
            }
            _ => 0,
        };
        self.scratch(attention::scratch_bytes(longest, s.head_dim, relative));
        Ok(())
    }

    fn attend(&self, _: Columns, stores: &[&KvStore], s: &StoredAttention, _: &mut Buffer) -> Result<()> {
        let longest = stores.iter().map(|store| store.len()).max().unwrap_or(0);
        let rows = s.segments.iter().map(|segment| segment.len()).max().unwrap_or(0);
        self.scratch(longest.next_multiple_of(PANEL) * rows.clamp(s.heads, 96) * 4);
        Ok(())
    }

    fn kv_store(&self, kv_heads: usize, head_dim: usize) -> Result<KvStore> {
        Ok(KvStore::new(kv_heads, head_dim, ()))
    }

    fn kv_append(&self, store: &mut KvStore, _: Columns, _: Columns, rows: Range<usize>) -> Result<()> {
        store.set_range(store.first(), store.len() + rows.len());
        Ok(())
    }

    fn kv_keep(&self, store: &mut KvStore, first: usize, len: usize) -> Result<()> {
        store.set_range(first, len);
        Ok(())
    }

    fn kv_share(&self, store: &KvStore) -> Result<KvStore> {
        let mut other = KvStore::new(store.kv_heads(), store.head_dim(), ());
        other.set_range(store.first(), store.len());
        Ok(other)
    }

    fn attention_scores(&self, _: Columns, _: Columns, _: &AttentionShape, _: &mut Buffer) -> Result<()> {
        Ok(())
    }

    fn softmax(&self, _: &mut Buffer, _: &AttentionShape) -> Result<()> {
        Ok(())
    }

    fn attention_values(&self, _: &Buffer, _: Columns, _: &AttentionShape, _: &mut Buffer) -> Result<()> {
        Ok(())
    }

    fn gather(&self, _: &Table, _: &IndexBuffer, _: bool, _: &mut Buffer) -> Result<()> {
        Ok(())
    }

    fn norm(&self, _: &mut Buffer, _: Slices, _: Norm) -> Result<()> {
        Ok(())
    }

    fn activate(&self, _: &mut Buffer, _: Activation) -> Result<()> {
        Ok(())
    }

    fn add(&self, _: &mut Buffer, _: &Buffer) -> Result<()> {
        Ok(())
    }

    fn scale(&self, _: &mut Buffer, _: f32) -> Result<()> {
        Ok(())
    }

    fn mul(&self, _: &mut Buffer, _: &Buffer) -> Result<()> {
        Ok(())
    }

    fn rope(&self, _: &mut Buffer, _: &Rope) -> Result<()> {
        Ok(())
    }

    fn copy_rows(&self, _: &Buffer, _: usize, _: usize, _: &mut Buffer) -> Result<()> {
        Ok(())
    }

    fn unfold(&self, _: &Buffer, _: usize, _: &Segments, _: &IndexBuffer, _: usize, _: &mut Buffer) -> Result<()> {
        Ok(())
    }

    fn pool(
        &self,
        _: &Buffer,
        _: usize,
        _: &Segments,
        _: usize,
        _: PoolingMode,
        _: (&mut Buffer, usize, usize),
    ) -> Result<()> {
        Ok(())
    }

    fn l2_normalize(&self, _: &mut Buffer, _: usize) -> Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::CpuCompute;
    use super::*;
    use crate::config::BertConfig;
    use crate::model::BertModel;
    use crate::{LoadOptions, Sequence, weights::Checkpoint};

    /// One fixture of each family, by the first part of its name.
    fn one_a_family() -> Vec<std::path::PathBuf> {
        let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
        let mut folders: Vec<_> = std::fs::read_dir(fixtures).unwrap().flatten().map(|e| e.path()).collect();
        folders.retain(|f| f.join("expected.safetensors").is_file() && f.join("config.json").is_file());
        folders.sort();
        let mut seen = std::collections::BTreeSet::new();
        folders.retain(|f| {
            let name = f.file_name().unwrap().to_str().unwrap();
            seen.insert(name.split('-').next().unwrap().to_string())
        });
        folders
    }

    #[test]
    fn the_forward_pass_takes_what_the_footprint_says() {
        let (mut families, mut wasteful) = (0, Vec::new());
        for folder in one_a_family() {
            let config = BertConfig::from_folder(&folder).unwrap();
            let compute = CpuCompute::new().unwrap();
            let Ok(model) = BertModel::load_with_compute(&folder, config, Arc::new(compute.clone())) else { continue };
            families += 1;
            let sequence = Sequence::new(vec![1; 20]);
            let footprint = Arc::new(Footprint::over(Arc::new(compute.clone())));
            model.run_on(footprint.clone(), &[20]).unwrap();
            let told = locked(&footprint.buffers).most_in_use;
            let pass = || model.observe(&sequence, &mut |_, _| Ok(())).unwrap();
            // The first pass also makes tables of angles, which stay.
            pass();
            let kept = compute.pool().used().0;
            compute.pool().forget_peak();
            pass();
            let (after, most) = compute.pool().used();
            assert_eq!(after, kept, "{}", folder.display());
            assert_eq!(told, most - kept, "{}", folder.display());
            // What the pool keeps serves the next pass: nothing is mapped anew in a steady run.
            let made = compute.pool().made();
            (0..5).for_each(|_| pass());
            if compute.pool().made() > made {
                wasteful.push(folder);
            }
        }
        assert!(families >= 20, "{families} families");
        assert!(wasteful.is_empty(), "the pool is too small for {wasteful:?}");
    }

    /// In every precision, and for a BLAS; and so does what is quantised of the rows that they multiply.
    #[test]
    fn matrices_take_what_they_are_planned_to() {
        let exact = || CpuCompute::with_kernels(crate::cpu::available()[0]);
        let near = || exact().with_blas(Some(&crate::cpu::blas::tests::WIDE));
        let mut compared = 0;
        for folder in one_a_family() {
            let config = BertConfig::from_folder(&folder).unwrap();
            let load = |compute: Arc<dyn GpuCompute>, precision| {
                let options = LoadOptions { precision, ..LoadOptions::default() };
                BertModel::load_with_options(&folder, config.clone(), compute, options)
            };
            let cases = [(exact(), Precision::Exact), (exact(), Precision::Int8), (near(), Precision::Exact)];
            for (compute, precision) in cases {
                let footprint = Arc::new(Footprint::over(Arc::new(compute.clone())));
                let (Ok(dry), Ok(real)) = (load(footprint.clone(), precision), load(Arc::new(compute), precision))
                else {
                    continue;
                };
                assert_eq!(dry.weight_bytes(), real.weight_bytes(), "{} {precision:?}", folder.display());
                let [of_dry, of_real] = [dry, real].map(|model| model.dry_run(&[20]).unwrap().scratch);
                assert_eq!(of_dry, of_real, "{} {precision:?}", folder.display());
                compared += 1;
            }
        }
        assert!(compared >= 60, "{compared}");
    }

    #[test]
    fn stores_count_their_keys() {
        let footprint = Footprint::over(Arc::new(CpuCompute::new().unwrap()));
        let mut store = footprint.kv_store(2, 8).unwrap();
        let x = footprint.alloc(10 * 48).unwrap();
        let part = |first| Columns { buffer: &x, first, stride: 48 };
        footprint.kv_append(&mut store, part(16), part(32), 0..10).unwrap();
        footprint.kv_keep(&mut store, 2, 9).unwrap();
        let shared = footprint.kv_share(&store).unwrap();
        assert_eq!((shared.first(), shared.len()), (2, 9));
    }

    #[test]
    fn tables_and_files_are_accounted() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/bert-base");
        let checkpoint = Checkpoint::open(&folder).unwrap();
        let footprint = Arc::new(Footprint::over(Arc::new(CpuCompute::new().unwrap())));
        let config = BertConfig::from_folder(&folder).unwrap();
        BertModel::load_with_compute(&folder, config, footprint.clone()).unwrap();
        let of = |part: &str| {
            let names = checkpoint.names().filter(|name| name.contains(part));
            names.map(|name| checkpoint.get(name).unwrap().resident_bytes()).sum::<usize>()
        };
        let account = footprint.account();
        assert_eq!(account.tables, of("_embeddings.weight"));
        let file = std::fs::metadata(checkpoint.files().next().unwrap()).unwrap().len() as usize;
        assert!(account.loading > 0 && account.loading <= 3 * file, "{account:?}");
        assert!(account.vectors > 0);
    }
}
