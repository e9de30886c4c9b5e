//! Incoming connections of a rank, only some of which belong to its group.

use std::io;
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use super::handshake::{self, Hello};
use super::token::Token;

/// Pause between attempts to reach a rank that does not listen yet, and between polls of listeners.
pub(super) const PAUSE: Duration = Duration::from_millis(20);
/// Maximum number of connections that have not proved the token yet. Others wait in the queue of the system.
const MAX_UNPROVED: usize = 64;

/// Connections that have proved the token, in the order of their proofs. Each proof runs in its own thread, so a
/// program that connects and sends nothing cannot block a rank.
pub(super) struct Arrivals<'a> {
    pub listeners: &'a [TcpListener],
    token: Token,
    to: mpsc::Sender<(TcpStream, Hello)>,
    from: mpsc::Receiver<(TcpStream, Hello)>,
    unproved: Arc<AtomicUsize>,
    /// Number of connections that failed to prove the token.
    pub refused: Arc<AtomicUsize>,
}

impl<'a> Arrivals<'a> {
    pub(super) fn at(listeners: &'a [TcpListener], token: Token) -> io::Result<Arrivals<'a>> {
        let (to, from) = mpsc::channel();
        for listener in listeners {
            listener.set_nonblocking(true)?;
        }
        Ok(Arrivals {
            listeners,
            token,
            to,
            from,
            unproved: Arc::default(),
            refused: Arc::default(),
        })
    }

    /// Returns the next connection, if one arrives within [`PAUSE`].
    pub(super) fn next(&self) -> io::Result<Option<(TcpStream, Hello)>> {
        use io::ErrorKind::{ConnectionAborted, ConnectionReset, Interrupted, WouldBlock};
        for listener in self.listeners {
            while self.unproved.load(Ordering::Relaxed) < MAX_UNPROVED {
                match listener.accept() {
                    Ok((stream, _)) => self.prove(stream),
                    Err(error) if error.kind() == WouldBlock => break,
                    // The other end has already closed the connection.
                    Err(error)
                        if matches!(
                            error.kind(),
                            ConnectionAborted | ConnectionReset | Interrupted
                        ) => {}
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(self.from.recv_timeout(PAUSE).ok())
    }

    fn prove(&self, stream: TcpStream) {
        let (token, to) = (self.token, self.to.clone());
        let (unproved, refused) = (Arc::clone(&self.unproved), Arc::clone(&self.refused));
        self.unproved.fetch_add(1, Ordering::Relaxed);
        let work = move || {
            let hello = stream.set_nonblocking(false);
            let hello = hello.and_then(|()| handshake::listening(&stream, token));
            match hello {
                // A send error means that the rendezvous is over.
                Ok(Some(hello)) => drop(to.send((stream, hello))),
                _ => drop(refused.fetch_add(1, Ordering::Relaxed)),
            }
            unproved.fetch_sub(1, Ordering::Relaxed);
        };
        let thread = thread::Builder::new().name("handshake".into()).spawn(work);
        if thread.is_err() {
            self.unproved.fetch_sub(1, Ordering::Relaxed);
        }
    }
}
