//! The order of work: one queue, whose command buffers are filled, committed and checked one after another.

use std::collections::VecDeque;

use objc2::rc::Retained;
use objc2::runtime::ProtocolObject;
use objc2_metal::{
    MTLBlitCommandEncoder, MTLCommandBuffer, MTLCommandBufferStatus, MTLCommandEncoder, MTLCommandQueue,
    MTLComputeCommandEncoder,
};

use crate::gpu::device::{DeviceError, DeviceResult};

type CommandBuffer = Retained<ProtocolObject<dyn MTLCommandBuffer>>;
type Compute = Retained<ProtocolObject<dyn MTLComputeCommandEncoder>>;
type Blit = Retained<ProtocolObject<dyn MTLBlitCommandEncoder>>;

/// Launches after which a command buffer is committed, so that the GPU works while the next one is filled.
const LAUNCHES: usize = 64;

/// Work in the order of the calls. Encoders of one queue run one after another, and so do the dispatches of one
/// encoder: Metal tracks what buffers they write.
pub(super) struct Stream {
    queue: Retained<ProtocolObject<dyn MTLCommandQueue>>,
    open: Option<Open>,
    /// Command buffers that may still run, oldest first, by number.
    committed: VecDeque<(u64, CommandBuffer)>,
    /// The number of the command buffer that is open or will be opened next.
    number: u64,
    /// All command buffers up to this number have run to their end.
    completed: u64,
    lost: Option<DeviceError>,
}

/// A command buffer that is being filled.
struct Open {
    buffer: CommandBuffer,
    encoder: Encoder,
    launches: usize,
}

enum Encoder {
    Compute(Compute),
    Blit(Blit),
    None,
}

// SAFETY: command buffers and encoders may be used from any thread, by one at a time: they lie behind a lock.
unsafe impl Send for Stream {}

impl Encoder {
    fn end(&mut self) {
        match std::mem::replace(self, Self::None) {
            Self::Compute(encoder) => encoder.endEncoding(),
            Self::Blit(encoder) => encoder.endEncoding(),
            Self::None => {}
        }
    }
}

impl Stream {
    pub fn new(queue: Retained<ProtocolObject<dyn MTLCommandQueue>>) -> Self {
        Self { queue, open: None, committed: VecDeque::new(), number: 1, completed: 0, lost: None }
    }

    /// The number under which work that is enqueued now runs.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// An error when earlier work has failed.
    pub fn check(&mut self) -> DeviceResult<()> {
        while let Some((number, buffer)) = self.committed.front() {
            match buffer.status() {
                MTLCommandBufferStatus::Completed => self.completed = *number,
                MTLCommandBufferStatus::Error => {
                    let reason = buffer.error().map(|e| e.localizedDescription().to_string());
                    let lost = lost("a command buffer", reason.unwrap_or_else(|| "failed".to_string()));
                    self.lost.get_or_insert(lost);
                }
                _ => break,
            }
            self.committed.pop_front();
        }
        self.lost.clone().map_or(Ok(()), Err)
    }

    /// The number up to which all command buffers have run, without failure.
    pub fn completed(&mut self) -> DeviceResult<u64> {
        self.check()?;
        Ok(self.completed)
    }

    /// The encoder for kernels.
    pub fn compute(&mut self) -> DeviceResult<Compute> {
        let open = self.open()?;
        if let Encoder::Compute(encoder) = &open.encoder {
            return Ok(encoder.clone());
        }
        open.encoder.end();
        match open.buffer.computeCommandEncoder() {
            Some(encoder) => {
                open.encoder = Encoder::Compute(encoder.clone());
                Ok(encoder)
            }
            None => Err(self.lose("computeCommandEncoder")),
        }
    }

    /// The encoder for copies.
    pub fn blit(&mut self) -> DeviceResult<Blit> {
        let open = self.open()?;
        if let Encoder::Blit(encoder) = &open.encoder {
            return Ok(encoder.clone());
        }
        open.encoder.end();
        match open.buffer.blitCommandEncoder() {
            Some(encoder) => {
                open.encoder = Encoder::Blit(encoder.clone());
                Ok(encoder)
            }
            None => Err(self.lose("blitCommandEncoder")),
        }
    }

    /// Counts a launch, and commits when there are enough.
    pub fn launched(&mut self) {
        if let Some(open) = &mut self.open {
            open.launches += 1;
            if open.launches >= LAUNCHES {
                self.commit();
            }
        }
    }

    /// Runs all work to its end. Each command buffer is waited for: the state of one tells nothing of those before it.
    pub fn wait(&mut self) -> DeviceResult<()> {
        self.commit();
        for (_, buffer) in &self.committed {
            buffer.waitUntilCompleted();
        }
        self.check()
    }

    fn open(&mut self) -> DeviceResult<&mut Open> {
        self.check()?;
        if self.open.is_none() {
            let Some(buffer) = self.queue.commandBuffer() else { return Err(self.lose("commandBuffer")) };
            self.open = Some(Open { buffer, encoder: Encoder::None, launches: 0 });
        }
        match &mut self.open {
            Some(open) => Ok(open),
            None => unreachable!("it was opened above"),
        }
    }

    fn commit(&mut self) {
        if let Some(mut open) = self.open.take() {
            open.encoder.end();
            open.buffer.commit();
            self.committed.push_back((self.number, open.buffer));
            self.number += 1;
        }
    }

    fn lose(&mut self, operation: &str) -> DeviceError {
        self.lost.get_or_insert(lost(operation, "Metal gives none".to_string())).clone()
    }
}

impl Drop for Stream {
    /// An encoder has to be ended before it goes.
    fn drop(&mut self) {
        if let Some(open) = &mut self.open {
            open.encoder.end();
        }
    }
}

fn lost(operation: &str, detail: String) -> DeviceError {
    DeviceError::Lost { operation: operation.to_string(), detail }
}
