//! Groups of GPUs or CPUs. Rows of matrices are distributed over the ranks of a group, and ranks send each other the
//! rows that they need.
//!
//! A rank is a process or a thread with its own [`Context`]. All ranks make the same calls in the same order. GPUs send
//! data through NCCL, which is opened at run time (`libnccl.so.2`). CPUs send data through sockets.
//!
//! ```
//! use einsparse::formats::{Csr, CsrPattern, Dense};
//! use einsparse::group::{Group, Partition, Sharded, ShardedSpmm};
//! use einsparse::Context;
//!
//! let a = Csr::new(CsrPattern::new(4, 4, vec![0, 2, 3, 4, 5], vec![0, 3, 1, 0, 2])?, vec![1.0f32, 2.0, 3.0, 4.0, 5.0])?;
//! let b = Dense::from_fn(vec![4, 2], |i| (2 * i[0] + i[1]) as f32)?;
//! // Two ranks of this process; `Group::from_env` is that of a launcher with a process a rank.
//! let ranks = Group::local(&[Context::cpu(), Context::cpu()])?;
//! let rank = |group: Group| -> einsparse::Result<Vec<f32>> {
//!     let rows = Partition::balanced(a.pattern(), 2, group.size());
//!     let mine = Sharded::of(&group, &a, &rows)?;
//!     let product = ShardedSpmm::new(&group, &mine, &rows, 2, &Default::default())?;
//!     let (mut x, mut y) = (product.operand()?, product.output()?);
//!     let own = rows.range(group.rank());
//!     let b = Dense::new([own.len(), 2], b.values()[own.start * 2..own.end * 2].to_vec())?;
//!     x.local_mut()?.write(&b)?;
//!     product.run(&mut x, &mut y, &group.context().stream()?)?;
//!     Ok(y.to_dense()?.into_values())
//! };
//! let parts = std::thread::scope(|s| {
//!     let ranks: Vec<_> = ranks.into_iter().map(|group| s.spawn(|| rank(group))).collect();
//!     ranks.into_iter().map(|rank| rank.join().unwrap()).collect::<einsparse::Result<Vec<_>>>()
//! })?;
//! assert_eq!(parts.concat(), [12.0, 15.0, 6.0, 9.0, 0.0, 4.0, 20.0, 25.0]);
//! # Ok::<(), einsparse::Error>(())
//! ```
//!
//! The other operations are those of one GPU. They run on the rows of a [`Sharded`] matrix, with columns numbered by a
//! [`Halo`]:
//!
//! | operation | a rank stores | a rank receives |
//! |---|---|---|
//! | `S[m,n] = P[m,n] * X[m,k] * Y[n,k]` | rows of P, X and Y | rows of Y, a halo of P's columns |
//! | [`ops::SparseSoftmax`](einsparse_core::ops::SparseSoftmax) | rows | nothing |
//! | [`ops::SparseAttention`](einsparse_core::ops::SparseAttention), distributed by sequence | tokens: rows of the mask, Q, K and V | rows of K and V, concatenated: `[tokens, 2 key_heads dim]` |
//! | [`ops::SparseAttention`](einsparse_core::ops::SparseAttention), block masks | rows of blocks | blocks of rows: each is one row of a halo whose pattern is the pattern of blocks |
//! | [`ops::SparseAttention`](einsparse_core::ops::SparseAttention), distributed by head | heads | nothing; to gather all outputs, name all heads in a halo, one row each |
//! | [`ops::EquivariantMessage`](einsparse_core::ops::EquivariantMessage), [`ops::MessagePassing`](einsparse_core::ops::MessagePassing) | receivers | rows of senders; [`Halo::add`] returns their gradients |
//! | [`nn::Moe`] | tokens and experts | [`ShardedMoe`] |
//! | gradients of replicated weights | all weights | [`GroupSum`] |
//!
//! The nonzeros of a mask list the keys explicitly. `causal` and `lengths` of attention and softmax count the rank's
//! own rows and stored columns. A causal mask over several ranks must therefore list the remaining positions.

// Modules of the crates below, at the paths under which this crate uses them.
use einsparse_core::{context, plan, registry, tensor};
use einsparse_cuda::{device, driver};
use einsparse_lang::error;
use einsparse_nn as nn;

mod address;
mod arrivals;
mod environment;
mod exchange;
mod frame;
mod halo;
mod handshake;
mod id;
mod meet;
mod mesh;
mod moe;
mod nccl;
mod partition;
mod row_sum;
mod spmm;
mod sum;
mod token;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use environment::Described;
use id::{ID_BYTES, Id};
use mesh::{Mesh, lock};
use nccl::Comm;

pub use halo::Halo;
pub use moe::{ShardedMoe, ShardedMoeOptions};
pub use partition::{Partition, Sharded};
pub use spmm::{ShardedOptions, ShardedSpmm};
pub use sum::GroupSum;

use crate::context::Context;
use crate::error::{Error, Result};

/// Default time that ranks wait for each other.
const LIMIT: Duration = Duration::from_secs(300);
/// Time that ranks of a launcher wait until all ranks have joined.
const MEETING: Duration = Duration::from_secs(60);
/// Time that a rank that leaves waits for the others to leave: all ranks destroy the NCCL communicator together.
const LEAVING: Duration = Duration::from_secs(1);
/// Maximum number of ranks of a group: each rank has a connection and a thread for every other rank.
const MAX_RANKS: usize = 1 << 16;

/// Returns the end of a wait. A limit that overflows the clock is replaced by 100 years.
fn end_of(limit: Duration) -> Instant {
    let now = Instant::now();
    let century = Duration::from_secs(100 * 365 * 24 * 3600);
    now.checked_add(limit).unwrap_or_else(|| now + century)
}

/// One rank of a group. Cheap to clone. Only one thread of a rank may call at a time.
///
/// If a rank ends, hangs or drops its group while others wait for it, all of them return [`Error::Rank`] within ten
/// seconds. On a GPU, queued work is aborted as well, and [`Stream::synchronize`](einsparse_core::Stream::synchronize) and reads
/// return the error. The group then stays failed.
#[derive(Clone, Debug)]
pub struct Group(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    comm: Option<Arc<Comm>>,
    mesh: Mesh,
    context: Context,
    step: AtomicU64,
    limit: Mutex<Duration>,
}

impl Group {
    /// Creates ranks that are threads of this process, in the order of `contexts`: CPUs, or GPUs, each GPU once. On
    /// GPUs, waits until NCCL has connected the ranks.
    ///
    /// # Errors
    /// [`Error::Operand`] if `contexts` mixes GPUs and CPUs or contains a GPU twice; [`Error::Cuda`] without NCCL.
    pub fn local(contexts: &[Context]) -> Result<Vec<Group>> {
        let meshes = Mesh::local(contexts.len())?;
        let ranks = meshes.into_iter().zip(contexts);
        // Ranks wait for each other, so each needs a thread.
        std::thread::scope(|scope| {
            let start = |(mesh, context)| scope.spawn(move || Group::over(mesh, context));
            let ranks: Vec<_> = ranks.map(start).collect();
            let join =
                |(rank, thread): (usize, std::thread::ScopedJoinHandle<'_, Result<Group>>)| {
                    thread.join().unwrap_or_else(|_| {
                        let reason = "panicked while ranks met".to_owned();
                        Err(Error::Rank { rank, reason })
                    })
                };
            ranks.into_iter().enumerate().map(join).collect()
        })
    }

    /// Creates the id of a group, as raw bytes that a launcher passes to every rank. Rank 0 must be in the process that
    /// created the id. The id contains the secret of the group: every process that has it can join. Rank 0 listens at
    /// one address of this machine: that of the interface `EINSPARSE_INTERFACE`, or that of the default route.
    ///
    /// # Errors
    /// [`Error::Rank`] if this process cannot listen for connections; [`Error::Operand`] if the interface does not
    /// exist on this machine.
    pub fn unique_id() -> Result<[u8; ID_BYTES]> {
        id::unique_id()
    }

    /// Joins the group of an id as one of `size` ranks, one process per rank. Waits until all ranks have joined.
    ///
    /// ```
    /// use einsparse::{Context, group::Group};
    /// use std::time::Duration;
    /// let id = Group::unique_id()?;
    /// let group = Group::join(&Context::cpu(), &id, 0, 1, Duration::from_secs(10))?;
    /// assert_eq!((group.rank(), group.size()), (0, 1));
    /// # Ok::<(), einsparse::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Rank`] on every rank if a rank does not join within `limit`, joins twice, or passes another `size`;
    /// [`Error::Operand`] for invalid bytes of an id; otherwise as for [`local`](Self::local).
    pub fn join(
        context: &Context,
        id: &[u8],
        rank: usize,
        size: usize,
        limit: Duration,
    ) -> Result<Group> {
        Group::meet(context, &Id::from_bytes(id)?, rank, size, limit)
    }

    /// Joins the group that a launcher such as `torchrun` describes in the environment: `RANK`, `WORLD_SIZE`,
    /// `MASTER_ADDR` and `MASTER_PORT`. The launcher listens at `MASTER_PORT`, so ranks meet at the next port, or at
    /// `EINSPARSE_PORT`.
    ///
    /// Both ends of every connection prove that they have a secret. The secret is never sent.
    ///
    /// | ranks | secret | rank 0 listens at |
    /// |---|---|---|
    /// | on one machine: `LOCAL_WORLD_SIZE` is `WORLD_SIZE`, or `MASTER_ADDR` is a loopback address | created by rank 0, in a file that only this user can read | loopback |
    /// | on several machines | the text of `EINSPARSE_TOKEN`, at least 16 characters, equal on all ranks | `MASTER_ADDR`, or the interface `EINSPARSE_INTERFACE` |
    ///
    /// If `EINSPARSE_TOKEN` is set, ranks on one machine meet in the way of ranks on several machines. Data of ranks
    /// are neither encrypted nor signed: use several machines only on a network that others can neither read nor write.
    ///
    /// # Errors
    /// [`Error::Operand`] for a missing or invalid variable, such as a missing `EINSPARSE_TOKEN` on several machines;
    /// otherwise as for [`join`](Self::join) with a limit of 60 seconds.
    pub fn from_env(context: &Context) -> Result<Group> {
        let Described { id, rank, size } = Described::here()?;
        Group::meet(context, &id, rank, size, MEETING)
    }

    fn meet(
        context: &Context,
        id: &Id,
        rank: usize,
        size: usize,
        limit: Duration,
    ) -> Result<Group> {
        if rank >= size {
            let reason = format!("is not below the number of ranks, {size}");
            return Err(Error::Rank { rank, reason });
        }
        Group::over(meet::meet(id, rank, size, limit)?, context)
    }

    fn over(mesh: Mesh, context: &Context) -> Result<Group> {
        let mut inner = Inner {
            comm: None,
            mesh,
            context: context.clone(),
            step: AtomicU64::new(0),
            limit: Mutex::new(LIMIT),
        };
        inner.same("a GPU (1) or the CPU (0)", Ok(vec![u64::from(context.is_cuda())]))?;
        if let Some(device) = context.device().filter(|_| inner.mesh.size() > 1) {
            let id = match inner.mesh.rank() {
                0 => nccl::unique_id().map(Vec::from),
                _ => Ok(Vec::new()),
            };
            let ids = inner.gather("the id of NCCL", id)?;
            let id = ids[0]
                .as_slice()
                .try_into()
                .map_err(|_| Error::Rank { rank: 0, reason: "sent no id of NCCL".into() })?;
            let comm = Comm::new(device, &inner.mesh, id, MEETING);
            let made = inner.gather(
                "connecting by NCCL",
                comm.as_ref().map(|_| Vec::new()).map_err(Error::clone),
            );
            // The error of this rank takes precedence over the errors of other ranks.
            let comm = comm?;
            made?;
            inner.mesh.watch(Arc::clone(&comm) as _);
            inner.comm = Some(comm);
        }
        Ok(Group(Arc::new(inner)))
    }

    /// Index of this rank.
    pub fn rank(&self) -> usize {
        self.0.mesh.rank()
    }

    /// Number of ranks.
    pub fn size(&self) -> usize {
        self.0.mesh.size()
    }

    /// Context in which this rank computes.
    pub fn context(&self) -> &Context {
        &self.0.context
    }

    /// Sets the time that this rank waits for another rank that is alive. The default is 300 seconds.
    pub fn set_limit(&self, limit: Duration) {
        *lock(&self.0.limit) = limit;
    }

    /// Waits until all ranks have called this function.
    ///
    /// # Errors
    /// [`Error::Rank`] if a rank does not call it.
    pub fn barrier(&self) -> Result<()> {
        self.0.gather("a barrier", Ok(Vec::new())).map(|_| ())
    }

    /// Combines the results of a step: returns the value of this rank if the step succeeded on every rank. An error
    /// that only one rank detects, such as a truncated file, thus ends the step on all ranks. Without this call they
    /// would wait for that rank.
    ///
    /// # Errors
    /// The rank's own error on a rank that has one; [`Error::Rank`] with the text of that error on the others.
    pub fn all_ok<V>(&self, result: Result<V>) -> Result<V> {
        let said = self
            .0
            .gather("the end of a step", result.as_ref().map(|_| Vec::new()).map_err(Error::clone));
        let value = result?;
        said.map(|_| value)
    }

    pub(crate) fn same(&self, what: &str, own: Result<Vec<u64>>) -> Result<()> {
        self.0.same(what, own)
    }

    /// Sends one list to every rank and receives the lists that they send to this rank.
    pub(crate) fn ask(&self, lists: &[Vec<u32>]) -> Result<Vec<Vec<u32>>> {
        let Inner { mesh, .. } = &*self.0;
        let step = self.0.next_step();
        for (peer, list) in lists.iter().enumerate().filter(|(peer, _)| *peer != mesh.rank()) {
            mesh.send(peer, step, bytemuck::cast_slice(list))?;
        }
        let take = |peer: usize| match peer == mesh.rank() {
            true => Ok(lists[peer].clone()),
            false => {
                let bytes = mesh.receive(peer, step, self.0.limit())?;
                Ok(bytemuck::pod_collect_to_vec(&bytes))
            }
        };
        (0..mesh.size()).map(take).collect()
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let Some(comm) = &self.comm else {
            return self.mesh.leave(Duration::ZERO);
        };
        // Other ranks may still be receiving from this rank. If the group has failed, the watcher has ended the
        // transfers.
        if let Err(error) = self.context.synchronize() {
            tracing::info!(%error, "a rank leaves its group");
        }
        self.mesh.leave(LEAVING);
        comm.end();
    }
}

impl Inner {
    fn limit(&self) -> Duration {
        *lock(&self.limit)
    }

    fn next_step(&self) -> u64 {
        self.step.fetch_add(1, Ordering::Relaxed)
    }

    /// Collects the bytes of all ranks, in the order of ranks. Returns the first error if any rank has one.
    fn gather(&self, what: &str, own: Result<Vec<u8>>) -> Result<Vec<Vec<u8>>> {
        let step = self.next_step();
        let (rank, size) = (self.mesh.rank(), self.mesh.size());
        let name = [what.as_bytes(), &[0]].concat();
        let message = match &own {
            Ok(bytes) => [&[0], &name[..], bytes].concat(),
            Err(error) => [&[1], &name[..], error.to_string().as_bytes()].concat(),
        };
        for peer in (0..size).filter(|&peer| peer != rank) {
            self.mesh.send(peer, step, &message)?;
        }
        let mut own = Some(own);
        let mut all = Vec::with_capacity(size);
        let mut wrong = None;
        for peer in 0..size {
            if let Some(own) = own.take_if(|_| peer == rank) {
                match own {
                    Ok(bytes) => all.push(bytes),
                    Err(error) => wrong = wrong.or(Some(error)),
                }
                continue;
            }
            let bytes = self.mesh.receive(peer, step, self.limit())?;
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            let reason = match bytes.split_first() {
                Some((0, said)) if said.starts_with(&name) => {
                    all.push(said[name.len()..].to_vec());
                    continue;
                }
                Some((1, said)) if said.starts_with(&name) => text(&said[name.len()..]),
                said => {
                    let end = |said: &[u8]| said.iter().position(|&b| b == 0);
                    let theirs = said.map_or(&[][..], |(_, said)| &said[..end(said).unwrap_or(0)]);
                    let reason = format!(
                        "is at `{}` where rank {rank} is at `{what}`: all ranks make the same calls in the same order",
                        text(theirs)
                    );
                    let error = Error::Rank { rank: peer, reason };
                    self.mesh.fail(error.clone());
                    return Err(error);
                }
            };
            wrong = wrong.or(Some(Error::Rank { rank: peer, reason }));
        }
        wrong.map_or(Ok(all), Err)
    }

    /// Checks that the numbers are equal on all ranks.
    fn same(&self, what: &str, own: Result<Vec<u64>>) -> Result<()> {
        let mut all = self
            .gather(what, own.map(|own| bytemuck::pod_collect_to_vec(&own)))?
            .into_iter()
            .map(|words| bytemuck::pod_collect_to_vec::<u8, u64>(&words));
        let first = all.next().unwrap_or_default();
        for (rank, found) in (1..).zip(all) {
            if found != first {
                let at = first.iter().zip(&found).position(|(a, b)| a != b);
                let place = |words: &[u64]| match at {
                    Some(at) if words.len() > 8 => format!("{} at place {at}", words[at]),
                    _ if words.len() > 8 => format!("{} of them", words.len()),
                    _ => format!("{words:?}"),
                };
                let reason =
                    format!("has {what} {} where rank 0 has {}", place(&found), place(&first));
                return Err(Error::Rank { rank, reason });
            }
        }
        Ok(())
    }
}
