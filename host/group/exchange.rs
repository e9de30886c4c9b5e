//! Exchange of parts of tensors between ranks.

use std::ops::Range;

use super::nccl::Span;
use super::{Group, Inner};
use crate::context::Context;
use crate::device::Stream;
use crate::error::{Elsewhere, Error, Result};
use crate::registry::Scalar;
use crate::tensor::Tensor;

/// Elements of one tensor to send to each rank, and elements of another tensor to receive from each rank. Both tensors
/// are without gaps.
pub(super) struct Exchange<'a, T> {
    pub from: (&'a Tensor<T>, &'a [Range<usize>]),
    pub to: (&'a mut Tensor<T>, &'a [Range<usize>]),
}

/// An exchange of any element type.
pub(super) trait Exchanged {
    /// Addresses of the parts to send, and of the parts to receive.
    fn spans(&self, context: &Context, stream: &Stream) -> Result<[Vec<Span>; 2]>;

    /// Runs the exchange through sockets.
    fn on_host(&mut self, ranks: &Inner) -> Result<()>;
}

const SENT: &str = "what is sent";
const RECEIVED: &str = "what is received";

impl Group {
    /// Queues an exchange: sends elements of one tensor to every rank, and receives elements of all ranks into another
    /// tensor.
    pub(super) fn exchange<T: Scalar>(
        &self,
        from: (&Tensor<T>, &[Range<usize>]),
        to: (&mut Tensor<T>, &[Range<usize>]),
        stream: &Stream,
    ) -> Result<()> {
        self.exchange_all(&mut [&mut Exchange { from, to }], stream)
    }

    /// Queues several exchanges with one start of NCCL. All ranks pass them in the same order.
    pub(super) fn exchange_all(
        &self,
        all: &mut [&mut dyn Exchanged],
        stream: &Stream,
    ) -> Result<()> {
        let ranks = &*self.0;
        ranks.mesh.check()?;
        let Some(comm) = &ranks.comm else {
            return all.iter_mut().try_for_each(|one| one.on_host(ranks));
        };
        let (mut sends, mut receives) = (Vec::new(), Vec::new());
        for one in all.iter() {
            let [sent, received] = one.spans(&ranks.context, stream)?;
            sends.extend(sent);
            receives.extend(received);
        }
        let (stream, limit) = (stream.raw(), ranks.limit());
        // SAFETY: `spans` has validated that the parts belong to tensors of this GPU. The caller keeps the tensors
        // alive until the stream has completed.
        unsafe { comm.exchange(&sends, &receives, stream, &ranks.mesh, limit) }
    }
}

impl<T: Scalar> Exchanged for Exchange<'_, T> {
    fn spans(&self, context: &Context, stream: &Stream) -> Result<[Vec<Span>; 2]> {
        context.check_stream(stream)?;
        let of = |name: &str, tensor: &Tensor<T>, parts: &[Range<usize>]| -> Result<Vec<Span>> {
            tensor.check(name, context, tensor.shape())?;
            let columns = tensor.shape().last().copied().unwrap_or(1);
            if tensor.leading() != columns {
                let expected = format!("{columns}, without gaps between rows");
                return Err(Error::stride(name, tensor.leading(), expected));
            }
            let span = |(rank, part): (usize, &Range<usize>)| Span {
                rank,
                address: tensor.place() + (part.start * size_of::<T>()) as u64,
                bytes: part.len() * size_of::<T>(),
            };
            Ok(parts.iter().enumerate().map(span).collect())
        };
        Ok([of(SENT, self.from.0, self.from.1)?, of(RECEIVED, self.to.0, self.to.1)?])
    }

    fn on_host(&mut self, ranks: &Inner) -> Result<()> {
        let (rank, step) = (ranks.mesh.rank(), ranks.next_step());
        let (from, sends) = self.from;
        let values = from.host().or_elsewhere(SENT)?;
        for (peer, part) in others(rank, sends) {
            let bytes = bytemuck::cast_slice(&values[part]);
            ranks.mesh.send(peer, step, bytes)?;
        }
        let own = &values[sends[rank].clone()];
        let (to, receives) = &mut self.to;
        let values = to.host_mut().or_elsewhere(RECEIVED)?;
        values[receives[rank].clone()].copy_from_slice(own);
        for (peer, part) in others(rank, receives) {
            let bytes = ranks.mesh.receive(peer, step, ranks.limit())?;
            let place: &mut [u8] = bytemuck::cast_slice_mut(&mut values[part]);
            if bytes.len() != place.len() {
                let reason = format!("sent {} bytes for {}", bytes.len(), place.len());
                return Err(Error::Rank { rank: peer, reason });
            }
            place.copy_from_slice(&bytes);
        }
        Ok(())
    }
}

/// Non-empty parts of the other ranks.
fn others(
    rank: usize,
    parts: &[Range<usize>],
) -> impl Iterator<Item = (usize, Range<usize>)> + use<'_> {
    let parts = parts.iter().cloned().enumerate();
    parts.filter(move |(peer, part)| *peer != rank && !part.is_empty())
}
