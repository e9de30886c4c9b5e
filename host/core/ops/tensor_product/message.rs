//! Message passing of equivariant networks: gather, product and sum over the edges of a receiver in one kernel.

use std::ops::Deref;

use super::products::{Ends, Products};
use super::{Channels, Couplings, TensorProduct};
use crate::context::Context;
use crate::error::{Error, Result};
use crate::registry::Scalar;

const EXPRESSION: &str = "Out[R[e],k,u] = CG[i,j,k] * X[S[e],i,u] * Y[e,j] * W[e,L[k],u]";

/// Edges of a graph, in any order. If they are sorted by receiver, weights are read in their stored order.
///
/// ```
/// let edges = einsparse::ops::Edges { receivers: &[0, 0, 1], senders: &[1, 2, 0], nodes: [2, 3] };
/// assert_eq!(edges.receivers.len(), edges.senders.len());
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Edges<'a> {
    /// Receiver of the message of each edge.
    pub receivers: &'a [u32],
    /// Sender of the message of each edge.
    pub senders: &'a [u32],
    /// Numbers of receivers and senders; equal for a graph of atoms.
    pub nodes: [usize; 2],
}

impl Edges<'_> {
    /// Refuses lists of different lengths, and vertex indices out of range.
    pub(in crate::ops) fn check(&self) -> Result<()> {
        let [to, from] = [self.receivers, self.senders];
        if to.len() != from.len() {
            let (from, to) = (from.len(), to.len());
            return Err(Error::shape(
                "edges",
                format!("{from} senders"),
                format!("{to} receivers"),
            ));
        }
        for (name, list, count) in
            [("receivers", to, self.nodes[0]), ("senders", from, self.nodes[1])]
        {
            if let Some(at) = list.iter().position(|&node| node as usize >= count) {
                return Err(Error::index(name, (at, list[at].into()), "the nodes", count));
            }
        }
        Ok(())
    }
}

/// Messages of an equivariant network, `Out[r,k,u] = CG[i,j,k] * X[s,i,u] * Y[e,j] * W[e,path,u]` summed over the edges
/// e from s to r (NequIP, arXiv 2101.03164; MACE, arXiv 2206.07697). X contains the features of the senders, Y the
/// spherical harmonics of the edges, and W their weights. The product of an edge is never stored. Sums have a fixed
/// order.
///
/// | tensor | shape |
/// |---|---|
/// | X | `[senders, components, channels]` |
/// | Y | `[edges, components]` |
/// | W | `[edges, paths, channels]` |
/// | Out | `[receivers, components of all paths, channels]` |
///
/// f32 with degrees up to 3 runs one specialized kernel for the messages and one for all gradients. Each is launched
/// once or, for large graphs, once per group of channels. Other types and degrees run the expressions. This type
/// dereferences to [`TensorProduct`], which provides runs, gradients, shapes and kernel names. Gradients are always
/// planned; the gradient of X is a sum over the edges of a sender. Every element of an output is written.
///
/// ```
/// use einsparse::Context;
/// use einsparse::formats::Dense;
/// use einsparse::ops::{Couplings, Edges, EquivariantMessage, Factors};
/// let ctx = Context::cpu();
/// let edges = Edges { receivers: &[0, 0], senders: &[0, 1], nodes: [1, 2] };
/// let layer = EquivariantMessage::<f32>::new(&ctx, &Couplings::new(&[[0, 0, 0]])?, 1, edges)?;
/// let x = ctx.upload_dense(&Dense::new([2, 1, 1], vec![3.0, 5.0])?)?;
/// let y = ctx.upload_dense(&Dense::new([2, 1], vec![1.0, 1.0])?)?;
/// let w = ctx.upload_dense(&Dense::new([2, 1, 1], vec![10.0, 1.0])?)?;
/// let mut out = ctx.zeros(layer.out_shape())?;
/// let stream = ctx.stream()?;
/// layer.forward(Factors { x: &x, y: &y, w: Some(&w) }, &mut out, &stream)?;
/// stream.synchronize()?;
/// assert_eq!(out.to_dense()?.values(), [35.0]);
/// # Ok::<(), einsparse::Error>(())
/// ```
#[derive(Debug)]
pub struct EquivariantMessage<T: Scalar> {
    product: TensorProduct<T>,
}

impl<T: Scalar> EquivariantMessage<T> {
    /// Plans messages of `channels` channels, and their gradients.
    ///
    /// # Errors
    /// [`Error::Shape`] for lists of different lengths; [`Error::InvalidIndex`] for a vertex index out of range;
    /// [`Error::NoKernel`] if no kernel of the context supports the type.
    pub fn new(
        context: &Context,
        couplings: &Couplings,
        channels: usize,
        edges: Edges<'_>,
    ) -> Result<Self> {
        edges.check()?;
        let Edges { receivers, senders, nodes } = edges;
        let (count, paths) = (receivers.len(), couplings.paths().len());
        let shapes = [
            vec![nodes[1], couplings.components(0), channels],
            vec![count, couplings.components(1)],
            vec![count, paths, channels],
            vec![nodes[0], couplings.rows(), channels],
        ];
        let ends: Ends<'_> = [receivers, senders];
        let channels = Channels::Each(channels);
        let products =
            Products::new(context, couplings, channels, EXPRESSION, shapes, Some(ends), true)?;
        let product = TensorProduct { products };
        Ok(EquivariantMessage { product })
    }
}

impl<T: Scalar> Deref for EquivariantMessage<T> {
    type Target = TensorProduct<T>;

    fn deref(&self) -> &TensorProduct<T> {
        &self.product
    }
}
