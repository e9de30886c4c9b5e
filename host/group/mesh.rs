//! Connections between all ranks. They carry small messages and, on the CPU, data. They also detect failures: each rank
//! sends a beat every two seconds, and a closed or silent connection fails the group on all other ranks.

use std::collections::VecDeque;
use std::io;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::end_of;
use super::frame::{self, Kind, Link, MAX_DATA};
use crate::error::{Error, Result};

/// Maximum time between two messages of a rank.
const BEAT: Duration = Duration::from_secs(2);
/// A rank counts as dead after this time without a message.
const SILENCE: Duration = Duration::from_secs(8);
/// Interval at which the watcher polls other error sources, such as NCCL.
const WATCH: Duration = Duration::from_millis(100);

#[derive(Debug)]
struct Frame {
    step: u64,
    bytes: Vec<u8>,
}

#[derive(Debug)]
struct Peer {
    link: Link,
    /// Serializes writers, so that frames are not interleaved.
    writing: Mutex<()>,
}

impl Peer {
    fn write(&self, kind: Kind, step: u64, bytes: &[u8]) -> io::Result<()> {
        let _turn = lock(&self.writing);
        frame::write(&self.link, kind, step, bytes)
    }
}

#[derive(Debug, Default)]
struct Inbox {
    from: Vec<VecDeque<Frame>>,
    left: Vec<bool>,
    /// The other ranks are being notified of a failure.
    failing: bool,
    failed: Option<Error>,
    /// This rank is leaving: failures of other ranks are ignored.
    closed: bool,
}

/// Error source that the watcher polls and aborts.
pub(super) trait Watched: Send + Sync {
    /// Returns an error from outside the connections. `left`: a rank that has left the group, if any.
    fn look(&self, left: Option<usize>) -> Result<()>;
    /// Aborts operations that wait for other ranks, after the group has failed.
    fn abort(&self, reason: &Error);
}

struct Shared {
    rank: usize,
    /// Connections, indexed by rank; `None` for this rank.
    peers: Vec<Option<Peer>>,
    inbox: Mutex<Inbox>,
    changed: Condvar,
    watched: Mutex<Option<Arc<dyn Watched>>>,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "rank {} of {}", self.rank, self.peers.len())
    }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    /// Records the error as the end of the group, unless it has ended already. Other ranks are notified first, because
    /// this rank may exit right after.
    fn fail(&self, error: Error) {
        {
            let mut inbox = lock(&self.inbox);
            if inbox.failing {
                // Wait until the thread that detected the failure first has notified the other ranks.
                while inbox.failed.is_none() && !inbox.closed {
                    let waited = self.changed.wait_timeout(inbox, WATCH);
                    inbox = waited.unwrap_or_else(PoisonError::into_inner).0;
                }
            }
            if inbox.closed || inbox.failing {
                return;
            }
            inbox.failing = true;
        }
        let (at_fault, reason) = match &error {
            Error::Rank { rank, reason } => (*rank, reason.clone()),
            other => (self.rank, other.to_string()),
        };
        for (rank, peer) in self.peers.iter().enumerate() {
            // Ignore write errors: the other rank detects a broken connection itself.
            if let Some(peer) = peer.as_ref().filter(|_| rank != at_fault) {
                let _ = peer.write(Kind::Fail, at_fault as u64, reason.as_bytes());
            }
        }
        self.end(error);
    }

    fn end(&self, error: Error) {
        let mut inbox = lock(&self.inbox);
        if !inbox.closed {
            inbox.failing = true;
            inbox.failed.get_or_insert(error);
        }
        drop(inbox);
        self.changed.notify_all();
    }

    /// Receives messages of a rank until it leaves, fails or closes its connection.
    fn listen(&self, rank: usize) {
        let Some(peer) = &self.peers[rank] else {
            return;
        };
        loop {
            match frame::read(&peer.link) {
                Ok((Kind::Beat, ..)) => {}
                Ok((Kind::Data, step, bytes)) => {
                    lock(&self.inbox).from[rank].push_back(Frame { step, bytes });
                    self.changed.notify_all();
                }
                Ok((Kind::Leave, ..)) => {
                    lock(&self.inbox).left[rank] = true;
                    self.changed.notify_all();
                    return;
                }
                Ok((Kind::Fail, at, reason)) => {
                    let reason = String::from_utf8_lossy(&reason).into_owned();
                    return self.end(Error::Rank { rank: at as usize, reason });
                }
                Err(error) => {
                    use io::ErrorKind::{TimedOut, UnexpectedEof, WouldBlock};
                    let reason = match error.kind() {
                        UnexpectedEof => "ended without leaving the group".to_owned(),
                        TimedOut | WouldBlock => {
                            format!("has not been heard from for {} s", SILENCE.as_secs())
                        }
                        _ => format!("its connection broke: {error}"),
                    };
                    return self.fail(Error::Rank { rank, reason });
                }
            }
        }
    }

    /// Returns the failure of the group, after a pause if it has not failed; `None` if this rank is leaving.
    fn outcome(&self) -> Option<Result<()>> {
        let mut inbox = lock(&self.inbox);
        if !inbox.closed && inbox.failed.is_none() {
            let waited = self.changed.wait_timeout(inbox, WATCH);
            inbox = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        (!inbox.closed).then(|| inbox.failed.clone().map_or(Ok(()), Err))
    }

    /// Loop of the watcher: sends beats, polls `watched`, and aborts it if the group fails.
    fn watch(&self) {
        let mut beat = Instant::now();
        loop {
            let Some(failed) = self.outcome() else {
                return;
            };
            let watched = lock(&self.watched).clone();
            if let Err(error) = failed {
                // Without the lock of the inbox: `abort` may wait for other ranks, whose messages need the inbox.
                if let Some(watched) = watched {
                    watched.abort(&error);
                }
                return;
            }
            let left = lock(&self.inbox).left.iter().position(|&left| left);
            if let Some(Err(error)) = watched.map(|watched| watched.look(left)) {
                self.fail(error);
                continue;
            }
            if beat.elapsed() >= BEAT {
                beat = Instant::now();
                for (rank, peer) in self.peers.iter().enumerate() {
                    // Ignore write errors: the listener reports a broken connection.
                    if let Some(peer) = peer.as_ref().filter(|_| !lock(&self.inbox).left[rank]) {
                        let _ = peer.write(Kind::Beat, 0, &[]);
                    }
                }
            }
        }
    }
}

/// Connections of one rank.
#[derive(Debug)]
pub(super) struct Mesh(Arc<Shared>);

impl Mesh {
    /// Takes ownership of connections, indexed by rank. The entry of this rank is `None`.
    pub(super) fn new(rank: usize, links: Vec<Option<Link>>) -> Result<Mesh> {
        let broken = |peer: usize| {
            move |error: io::Error| Error::Rank {
                rank: peer,
                reason: format!("its connection broke: {error}"),
            }
        };
        let size = links.len();
        let mut peers = Vec::with_capacity(size);
        for (peer, link) in links.into_iter().enumerate() {
            if let Some(link) = &link {
                link.set_timeout(SILENCE).map_err(broken(peer))?;
            }
            peers.push(link.map(|link| Peer { link, writing: Mutex::new(()) }));
        }
        let shared = Arc::new(Shared {
            rank,
            peers,
            inbox: Mutex::new(Inbox {
                from: (0..size).map(|_| VecDeque::new()).collect(),
                left: vec![false; size],
                ..Inbox::default()
            }),
            changed: Condvar::new(),
            watched: Mutex::new(None),
        });
        let mesh = Mesh(shared);
        if size > 1 {
            let start = |name: String, work: Box<dyn FnOnce(&Shared) + Send>| {
                let shared = Arc::clone(&mesh.0);
                let thread = thread::Builder::new().name(name);
                thread.spawn(move || work(&shared)).map_err(broken(rank))
            };
            for peer in (0..size).filter(|&peer| peer != rank) {
                start(format!("from rank {peer}"), Box::new(move |s| s.listen(peer)))?;
            }
            start(format!("watcher of rank {rank}"), Box::new(Shared::watch))?;
        }
        Ok(mesh)
    }

    /// Creates connections between ranks that are threads of this process.
    pub(super) fn local(size: usize) -> Result<Vec<Mesh>> {
        let mut links: Vec<Vec<Option<Link>>> = Vec::with_capacity(size);
        for rank in 0..size {
            let mut own: Vec<_> = (0..size).map(|_| None).collect();
            for (peer, theirs) in links.iter_mut().enumerate() {
                let (left, right) = UnixStream::pair().map_err(|error| Error::Rank {
                    rank: peer,
                    reason: format!("no connection between threads: {error}"),
                })?;
                theirs[rank] = Some(Link::Unix(left));
                own[peer] = Some(Link::Unix(right));
            }
            links.push(own);
        }
        let ranks = links.into_iter().enumerate();
        ranks.map(|(rank, links)| Mesh::new(rank, links)).collect()
    }

    pub(super) fn rank(&self) -> usize {
        self.0.rank
    }

    pub(super) fn size(&self) -> usize {
        self.0.peers.len()
    }

    /// Makes the watcher poll `watched`.
    pub(super) fn watch(&self, watched: Arc<dyn Watched>) {
        *lock(&self.0.watched) = Some(Arc::clone(&watched));
        // The watcher of a failed group has ended and cannot abort it.
        if let Err(error) = self.check() {
            watched.abort(&error);
        }
    }

    /// Returns the failure of the group, if it has failed.
    pub(super) fn check(&self) -> Result<()> {
        lock(&self.0.inbox).failed.clone().map_or(Ok(()), Err)
    }

    /// Fails the group on all ranks.
    pub(super) fn fail(&self, error: Error) {
        self.0.fail(error);
    }

    /// Notifies the other ranks that this rank leaves, and waits up to `moment` until they have left as well.
    pub(super) fn leave(&self, moment: Duration) {
        for peer in self.0.peers.iter().flatten() {
            // Ignore write errors: the other rank may have exited.
            let _ = peer.write(Kind::Leave, 0, &[]);
        }
        let mut inbox = lock(&self.0.inbox);
        inbox.left[self.0.rank] = true;
        let end = end_of(moment);
        while inbox.failed.is_none() && inbox.left.contains(&false) && Instant::now() < end {
            let waited = self.0.changed.wait_timeout(inbox, WATCH.min(moment));
            inbox = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Sends bytes. Returns when they are written to the connection.
    pub(super) fn send(&self, to: usize, step: u64, bytes: &[u8]) -> Result<()> {
        self.check()?;
        let Some(peer) = &self.0.peers[to] else {
            return Ok(());
        };
        if bytes.len() as u64 > MAX_DATA {
            let error = Error::Overflow {
                what: format!("bytes that rank {} sends to rank {to} in one step", self.rank()),
                value: bytes.len() as u128,
                limit: MAX_DATA.into(),
            };
            self.0.fail(error.clone());
            return Err(error);
        }
        peer.write(Kind::Data, step, bytes).map_err(|error| {
            let left = lock(&self.0.inbox).left[to];
            let error = Error::Rank {
                rank: to,
                reason: match left {
                    true => "has left the group".into(),
                    false => format!("its connection broke: {error}"),
                },
            };
            self.0.fail(error.clone());
            // An earlier failure is the cause, so it takes precedence.
            self.check().err().unwrap_or(error)
        })
    }

    /// Receives the bytes that a rank sent for this step.
    pub(super) fn receive(&self, from: usize, step: u64, limit: Duration) -> Result<Vec<u8>> {
        let end = end_of(limit);
        let mut inbox = lock(&self.0.inbox);
        loop {
            if let Some(frame) = inbox.from[from].pop_front() {
                if frame.step == step {
                    return Ok(frame.bytes);
                }
                let reason = format!(
                    "is at step {} of the group where this rank is at {step}: all ranks make the same calls in the \
                     same order",
                    frame.step
                );
                drop(inbox);
                let error = Error::Rank { rank: from, reason };
                self.0.fail(error.clone());
                return Err(error);
            }
            if let Some(error) = &inbox.failed {
                return Err(error.clone());
            }
            let now = Instant::now();
            if inbox.left[from] || now >= end {
                let reason = match inbox.left[from] {
                    true => "has left the group".to_owned(),
                    false => format!(
                        "is alive, but has not come to step {step} within {} s",
                        limit.as_secs()
                    ),
                };
                drop(inbox);
                let error = Error::Rank { rank: from, reason };
                self.0.fail(error.clone());
                return Err(error);
            }
            let waited = self.0.changed.wait_timeout(inbox, end - now);
            inbox = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl Drop for Mesh {
    fn drop(&mut self) {
        lock(&self.0.inbox).closed = true;
        self.0.changed.notify_all();
        for peer in self.0.peers.iter().flatten() {
            // Only the write half is closed. Closing with unread bytes would discard bytes that the other rank has not
            // read yet; the listener reads the rest.
            peer.link.end_writing();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    /// Fails the group from the watcher's poll, and reports for each abort whether the inbox could be locked.
    struct Probe(Arc<Shared>, mpsc::Sender<bool>);

    impl Watched for Probe {
        fn look(&self, _: Option<usize>) -> Result<()> {
            self.0.fail(failure());
            Ok(())
        }

        fn abort(&self, _: &Error) {
            // Other threads may hold the lock briefly.
            let end = Instant::now() + 2 * WATCH;
            let mut attempts = std::iter::repeat_with(|| self.0.inbox.try_lock().is_ok());
            let free = attempts.any(|free| free || Instant::now() > end);
            let _ = self.1.send(free && Instant::now() < end);
        }
    }

    fn failure() -> Error {
        let reason = "planted".to_owned();
        Error::Rank { rank: 1, reason }
    }

    #[test]
    fn failed_groups_are_aborted_without_the_lock_of_the_inbox() {
        let meshes = Mesh::local(2).unwrap();
        let own = &meshes[0];
        let (to, from) = mpsc::channel();
        let probe = || Arc::new(Probe(Arc::clone(&own.0), to.clone()));
        own.watch(probe());
        let limit = Duration::from_secs(10);
        assert_eq!(from.recv_timeout(limit), Ok(true));
        assert_eq!(own.check().unwrap_err().to_string(), failure().to_string());
        // A watched object that is added after the failure is aborted immediately.
        own.watch(probe());
        assert_eq!(from.recv_timeout(limit), Ok(true));
    }

    #[test]
    fn a_frame_above_the_limit_ends_the_group() {
        use std::io::Write;
        let (left, right) = UnixStream::pair().unwrap();
        let mesh = Mesh::new(0, vec![None, Some(Link::Unix(left))]).unwrap();
        let mut head = [0u8; 24];
        head[16..].fill(0xff);
        (&right).write_all(&head).unwrap();
        let error = mesh.receive(1, 0, Duration::MAX).unwrap_err().to_string();
        assert!(error.contains("rank 1: its connection broke: it sent a Data frame of"), "{error}");
    }
}
