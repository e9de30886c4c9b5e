//! Rendezvous of ranks: all connect to rank 0, which sends every rank the addresses at which the others listen.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Mutex;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use super::address::{listen, resolve};
use super::arrivals::{Arrivals, PAUSE};
use super::frame::Link;
use super::handshake::{self, Hello, read_text, write_text};
use super::id::{Id, cannot_listen, take_listener};
use super::mesh::{Mesh, lock};
use super::token::{Secret, Token};
use super::{MAX_RANKS, end_of};
use crate::error::{Error, Result};

/// Time limit per address of a host, so that the next address is tried.
const ATTEMPT: Duration = Duration::from_secs(5);

fn broken(rank: usize, error: impl std::fmt::Display) -> Error {
    Error::Rank { rank, reason: format!("its connection broke while ranks met: {error}") }
}

/// State of one rank during the rendezvous.
struct Meeting<'a> {
    id: &'a Id,
    rank: usize,
    size: usize,
    end: Instant,
    limit: Duration,
}

impl Meeting<'_> {
    fn left(&self) -> Duration {
        // Sockets interpret a time-out of zero as no time-out.
        self.end.saturating_duration_since(Instant::now()).max(Duration::from_millis(1))
    }

    fn seconds(&self) -> u64 {
        self.limit.as_secs()
    }

    /// Maximum number of bytes of the list of all addresses, or of an error.
    fn max_text(&self) -> usize {
        4096 + 64 * self.size
    }

    /// Connects to a rank at the first of its addresses whose listener proves the group's token.
    fn connect(
        &self,
        rank: usize,
        (place, addresses): (&str, &dyn Fn() -> io::Result<Vec<SocketAddr>>),
        token: &dyn Fn() -> Result<Option<Token>>,
        hello: &dyn Fn(&TcpStream) -> Result<Hello>,
    ) -> Result<(TcpStream, Token)> {
        let mut failed = io::Error::other("no attempt was made");
        loop {
            let token = token()?;
            let addresses = addresses();
            for address in addresses.as_deref().unwrap_or_default() {
                let Some(token) = token else { break };
                let attempt = TcpStream::connect_timeout(address, self.left().min(ATTEMPT));
                let attempt = match attempt {
                    Ok(stream) => {
                        let hello = hello(&stream)?;
                        handshake::connecting(&stream, token, hello, self.left()).map(|()| stream)
                    }
                    Err(error) => Err(error),
                };
                match attempt {
                    Ok(stream) => return Ok((stream, token)),
                    // Keep the error about a wrong token: it explains more than a time-out at the end of the wait.
                    Err(error) if failed.kind() != io::ErrorKind::PermissionDenied => {
                        failed = error
                    }
                    Err(_) => {}
                }
            }
            if let Err(error) = addresses {
                failed = error;
            }
            if Instant::now() + PAUSE >= self.end {
                let mut reason =
                    format!("cannot be reached at {place} within {} s: {failed}", self.seconds());
                if let (None, Secret::Shared(file)) = (token, &self.id.secret) {
                    reason = format!(
                        "did not write the token of the group to {} within {} s: rank 0 must run on this machine, as \
                         this user and with this directory for temporary files; otherwise set EINSPARSE_TOKEN to \
                         the same secret text for all ranks",
                        file.path().display(),
                        self.seconds()
                    );
                } else if failed.kind() == io::ErrorKind::PermissionDenied {
                    reason += ". EINSPARSE_TOKEN, or the id, must be the same for all ranks";
                }
                return Err(Error::Rank { rank, reason });
            }
            thread::sleep(PAUSE);
        }
    }

    /// Accepts the next connection of this group.
    fn accept(
        &self,
        arrivals: &Arrivals<'_>,
        missing: &dyn Fn() -> Vec<usize>,
    ) -> Result<(TcpStream, Hello)> {
        loop {
            let next = arrivals.next();
            if let Some(found) = next.map_err(cannot_listen(self.rank, "its addresses"))? {
                return Ok(found);
            }
            if Instant::now() < self.end {
                continue;
            }
            let (missing, refused) = (missing(), arrivals.refused.load(Ordering::Relaxed));
            let at = arrivals.listeners.iter().filter_map(|listener| listener.local_addr().ok());
            let at: Vec<String> = at.map(|address| address.to_string()).collect();
            let mut reason = format!(
                "did not come within {} s to {} ({} of {} ranks are missing: {missing:?})",
                self.seconds(),
                at.join(" or "),
                missing.len(),
                self.size
            );
            if refused > 0 {
                reason +=
                    &format!("; {refused} connections without the token of the group were refused");
            }
            let rank = missing.first().copied().unwrap_or(0);
            return Err(Error::Rank { rank, reason });
        }
    }

    /// Returns the reason to reject a rank, if any.
    fn refusal(&self, hello: &Hello, links: &[Option<TcpStream>]) -> Option<String> {
        let rank = hello.rank as usize;
        match links.get(rank) {
            _ if hello.size as usize != self.size => Some(format!(
                "counts {} ranks where rank {} counts {}",
                hello.size, self.rank, self.size
            )),
            None => Some(format!("is not below the number of ranks, {}", self.size)),
            Some(None) if rank > self.rank => None,
            _ => Some("is there twice".to_owned()),
        }
    }

    /// Rank 0: waits for all others, then sends each the addresses of the others, or the error. A second process that
    /// claims a rank ends the rendezvous, because rank 0 cannot tell which of the two is right.
    fn receive(
        &self,
        listeners: &[TcpListener],
        token: Token,
        links: &mut [Option<TcpStream>],
    ) -> Result<()> {
        let arrivals =
            Arrivals::at(listeners, token).map_err(cannot_listen(0, &self.id.place()))?;
        let mut addresses = vec![String::new(); self.size];
        let mut outcome = Ok(());
        while outcome.is_ok() && links.iter().skip(1).any(Option::is_none) {
            let missing = || (1..self.size).filter(|&r| links[r].is_none()).collect();
            let (stream, hello) = match self.accept(&arrivals, &missing) {
                Ok(found) => found,
                Err(error) => {
                    outcome = Err(error);
                    break;
                }
            };
            let rank = hello.rank as usize;
            match self.refusal(&hello, links) {
                None => {
                    links[rank] = Some(stream);
                    addresses[rank] = hello.address.to_string();
                }
                Some(reason) => {
                    let _ = write_text(&stream, &format!("!{rank} {reason}"));
                    outcome = Err(Error::Rank { rank, reason });
                }
            }
        }
        let mut text = match &outcome {
            Ok(()) => {
                addresses[1..].iter().fold(String::new(), |text, address| text + address + "\n")
            }
            Err(Error::Rank { rank, reason }) => format!("!{rank} {reason}"),
            Err(other) => format!("!0 {other}"),
        };
        if text.len() > self.max_text() {
            text = format!("!0 {}", &text.chars().take(1000).collect::<String>());
        }
        for (rank, link) in links.iter().enumerate() {
            if let Some(link) = link {
                let sent = write_text(link, &text);
                outcome = outcome.and(sent.map_err(|error| broken(rank, error)));
            }
        }
        outcome
    }

    /// Reads the answer of a rank to a hello: a text, or the reason of its rejection.
    fn answer(&self, from: usize, stream: &TcpStream) -> Result<String> {
        let timeout = stream.set_read_timeout(Some(self.left()));
        let text = timeout.and_then(|()| read_text(stream, self.max_text()));
        let text = text.map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => Error::Rank {
                rank: from,
                reason: format!(
                    "did not send the addresses of all ranks within {} s",
                    self.seconds()
                ),
            },
            _ => broken(from, error),
        })?;
        match text.strip_prefix('!').and_then(|text| text.split_once(' ')) {
            Some((rank, reason)) => {
                Err(Error::Rank { rank: rank.parse().unwrap_or(from), reason: reason.to_owned() })
            }
            None => Ok(text),
        }
    }

    /// Listens at the interface given by name, or at the address from which this rank reaches rank 0.
    fn listen_beside(&self, first: &TcpStream) -> Result<TcpListener> {
        let own = first.local_addr().map_err(|error| broken(0, error))?.ip();
        let named = self.id.interface()?.unwrap_or_else(|| vec![own]);
        let same_family = named.iter().find(|named| named.is_ipv4() == own.is_ipv4());
        let own = same_family.or(named.first()).copied().unwrap_or(own);
        TcpListener::bind((own, 0)).map_err(cannot_listen(self.rank, &own.to_string()))
    }

    /// Every other rank: connects to rank 0, then to lower ranks, and accepts connections of higher ranks.
    fn go(&self, links: &mut [Option<TcpStream>]) -> Result<()> {
        let listener: Mutex<Option<TcpListener>> = Mutex::new(None);
        let hello = |stream: &TcpStream| -> Result<Hello> {
            let mut listener = lock(&listener);
            // Each address of rank 0 may be reached from a different interface, so listen again per attempt.
            let new = self.listen_beside(stream)?;
            let address = new.local_addr().map_err(|error| broken(self.rank, error))?;
            *listener = Some(new);
            let (rank, size) = (self.rank as u32, self.size as u32);
            Ok(Hello { rank, size, address })
        };
        let token = || match &self.id.secret {
            Secret::Given(token) => Ok(Some(*token)),
            Secret::Shared(file) => file.read(),
        };
        let place = self.id.place();
        let addresses = || resolve(&self.id.host, self.id.port);
        let (first, token) = self.connect(0, (&place, &addresses), &token, &hello)?;
        let text = self.answer(0, &first)?;
        links[0] = Some(first);
        let listener = listener.into_inner().ok().flatten();
        let listener = listener.ok_or_else(|| broken(self.rank, "it does not listen"))?;
        let address = listener.local_addr().map_err(|error| broken(self.rank, error))?;
        let known: Vec<&str> = text.lines().collect();
        if known.len() + 1 != self.size {
            let reason = format!("it named {} addresses for {} ranks", known.len(), self.size - 1);
            return Err(broken(0, reason));
        }
        let (rank, size) = (self.rank as u32, self.size as u32);
        for (peer, place) in (1..self.rank).zip(known) {
            let of_peer: SocketAddr = place.parse().map_err(|error| broken(0, error))?;
            let addresses = || Ok(vec![of_peer]);
            let hello = |_: &TcpStream| Ok(Hello { rank, size, address });
            let (link, _) = self.connect(peer, (place, &addresses), &|| Ok(Some(token)), &hello)?;
            self.answer(peer, &link)?;
            links[peer] = Some(link);
        }
        self.accept_later(&[listener], token, links)
    }

    /// Accepts connections of higher ranks. A second connection that claims a rank is rejected, and the first one is
    /// kept.
    fn accept_later(
        &self,
        listeners: &[TcpListener],
        token: Token,
        links: &mut [Option<TcpStream>],
    ) -> Result<()> {
        let arrivals =
            Arrivals::at(listeners, token).map_err(cannot_listen(self.rank, "its address"))?;
        while links.iter().skip(self.rank + 1).any(Option::is_none) {
            let later = self.rank + 1..self.size;
            let missing = || later.clone().filter(|&r| links[r].is_none()).collect();
            let (stream, hello) = self.accept(&arrivals, &missing)?;
            let rank = hello.rank as usize;
            match self.refusal(&hello, links) {
                None => {
                    write_text(&stream, "").map_err(|error| broken(rank, error))?;
                    links[rank] = Some(stream);
                }
                // Ignore write errors: the other end may have closed.
                Some(reason) => drop(write_text(&stream, &format!("!{rank} {reason}"))),
            }
        }
        Ok(())
    }
}

/// Rank 0: listens, shares the token and waits for the others.
fn lead(meeting: &Meeting<'_>, links: &mut [Option<TcpStream>]) -> Result<()> {
    let id = meeting.id;
    let listeners = match take_listener(id) {
        Some(listener) => vec![listener],
        None => {
            let addresses = match id.interface()? {
                Some(own) => own.iter().map(|&own| SocketAddr::new(own, id.port)).collect(),
                None => resolve(&id.host, id.port).map_err(cannot_listen(0, &id.place()))?,
            };
            listen(&addresses).map_err(|error| {
                let mut reason = format!("cannot listen at {addresses:?}: {error}");
                if error.kind() == io::ErrorKind::AddrNotAvailable {
                    reason += ". It is no address of this machine: set EINSPARSE_INTERFACE to the name of the \
                               network interface where the others reach rank 0";
                }
                Error::Rank { rank: 0, reason }
            })?
        }
    };
    match &id.secret {
        Secret::Given(token) => meeting.receive(&listeners, *token, links),
        Secret::Shared(file) => {
            // Written only after this process listens: from then on no other program can listen at this port.
            let (token, _removed) = file.create()?;
            meeting.receive(&listeners, token, links)
        }
    }
}

/// Connects this rank to all other ranks. An error of any rank is returned on every rank.
pub(super) fn meet(id: &Id, rank: usize, size: usize, limit: Duration) -> Result<Mesh> {
    if size > MAX_RANKS {
        return Err(Error::Overflow {
            what: "ranks of a group".into(),
            value: size as u128,
            limit: MAX_RANKS as u128,
        });
    }
    let meeting = Meeting { id, rank, size, end: end_of(limit), limit };
    let mut links: Vec<Option<TcpStream>> = (0..size).map(|_| None).collect();
    // The only rank of a group needs no listener.
    match (rank, size) {
        (_, 1) => drop(take_listener(id)),
        (0, _) => lead(&meeting, &mut links)?,
        _ => meeting.go(&mut links)?,
    }
    let links = links.into_iter().map(|link| link.map(Link::Tcp));
    Mesh::new(rank, links.collect())
}

#[cfg(test)]
mod tests;
