//! How ranks find each other: rank 0 is met at an address, and tells every rank where the others listen.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs, UdpSocket};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::mesh::{Link, Mesh};
use crate::error::{Error, Result};

/// What a connection of ours begins with.
const MAGIC: [u8; 8] = *b"einsprs1";
/// Bytes of [`Id`].
pub(super) const ID_BYTES: usize = 64;
/// Between attempts to reach a rank that does not listen yet, and looks at a listener.
const PAUSE: Duration = Duration::from_millis(20);

/// Where rank 0 is met, and what says that a connection belongs to this group.
#[derive(Clone, Debug)]
pub(super) struct Id {
    pub address: String,
    pub token: u64,
}

impl Id {
    pub(super) fn to_bytes(&self) -> Result<[u8; ID_BYTES]> {
        let address = self.address.as_bytes();
        let mut bytes = [0; ID_BYTES];
        bytes[..8].copy_from_slice(&self.token.to_le_bytes());
        let place = bytes[8..].get_mut(..address.len()).ok_or_else(|| {
            Error::operand("id", format!("the address {} is too long", self.address))
        })?;
        place.copy_from_slice(address);
        Ok(bytes)
    }

    pub(super) fn from_bytes(bytes: &[u8]) -> Result<Id> {
        let wrong = || Error::operand("id", "is none that `Group::unique_id` gave");
        let (token, address) = bytes.split_first_chunk::<8>().ok_or_else(wrong)?;
        let end = address
            .iter()
            .position(|&b| b == 0)
            .unwrap_or(address.len());
        let address = std::str::from_utf8(&address[..end]).map_err(|_| wrong())?;
        if bytes.len() != ID_BYTES || !address.contains(':') {
            return Err(wrong());
        }
        Ok(Id {
            address: address.to_owned(),
            token: u64::from_le_bytes(*token),
        })
    }
}

/// Listeners of ids that this process made and no group has taken yet, by port.
static LISTENERS: Mutex<Option<HashMap<u16, TcpListener>>> = Mutex::new(None);

/// A new id of a group, with rank 0 in this process.
pub(super) fn unique_id() -> Result<Id> {
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)).map_err(here(0))?;
    let port = listener.local_addr().map_err(here(0))?.port();
    let id = Id {
        address: format!("{}:{port}", own_address()),
        token: RandomState::new().hash_one(port),
    };
    let mut listeners = LISTENERS.lock().unwrap_or_else(PoisonError::into_inner);
    listeners.get_or_insert_default().insert(port, listener);
    Ok(id)
}

/// The address by which other machines reach this one; the own one where it has no way out. Nothing is sent.
fn own_address() -> IpAddr {
    let out = || {
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
        // Of a network that documents use: only the way there is asked.
        socket.connect((Ipv4Addr::new(192, 0, 2, 1), 9))?;
        socket.local_addr().map(|address| address.ip())
    };
    out().unwrap_or_else(|_: io::Error| Ipv4Addr::LOCALHOST.into())
}

fn here(rank: usize) -> impl Fn(io::Error) -> Error {
    move |error| Error::Rank {
        rank,
        reason: format!("cannot listen: {error}"),
    }
}

fn broken(rank: usize, error: impl std::fmt::Display) -> Error {
    Error::Rank {
        rank,
        reason: format!("its connection broke while ranks met: {error}"),
    }
}

/// What a rank says of itself first.
#[derive(Clone, Copy)]
struct Hello {
    token: u64,
    rank: u32,
    size: u32,
    /// Where it listens for others.
    port: u16,
}

const HELLO: usize = 26;

impl Hello {
    fn write(self, mut to: &TcpStream) -> io::Result<()> {
        let mut bytes = [0; HELLO];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..16].copy_from_slice(&self.token.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.rank.to_le_bytes());
        bytes[20..24].copy_from_slice(&self.size.to_le_bytes());
        bytes[24..].copy_from_slice(&self.port.to_le_bytes());
        to.write_all(&bytes)
    }

    /// None for a stranger.
    fn read(mut from: &TcpStream) -> Option<Hello> {
        let mut bytes = [0; HELLO];
        from.read_exact(&mut bytes).ok()?;
        let word = |at: usize| Some(u32::from_le_bytes(bytes[at..at + 4].try_into().ok()?));
        (bytes[..8] == MAGIC).then_some(())?;
        Some(Hello {
            token: u64::from_le_bytes(bytes[8..16].try_into().ok()?),
            rank: word(16)?,
            size: word(20)?,
            port: u16::from_le_bytes(bytes[24..].try_into().ok()?),
        })
    }
}

fn write_text(mut to: &TcpStream, text: &str) -> io::Result<()> {
    to.write_all(&(text.len() as u32).to_le_bytes())?;
    to.write_all(text.as_bytes())
}

fn read_text(mut from: &TcpStream) -> io::Result<String> {
    let mut length = [0; 4];
    from.read_exact(&mut length)?;
    let mut text = String::new();
    from.take(u32::from_le_bytes(length).into())
        .read_to_string(&mut text)?;
    Ok(text)
}

/// The ranks of one group while they meet.
struct Meeting<'a> {
    id: &'a Id,
    rank: usize,
    size: usize,
    end: Instant,
    limit: Duration,
}

impl Meeting<'_> {
    fn left(&self) -> Duration {
        // A time-out of zero means none to sockets.
        (self.end - Instant::now().min(self.end)).max(Duration::from_millis(1))
    }

    fn hello(&self, port: u16) -> Hello {
        Hello {
            token: self.id.token,
            rank: self.rank as u32,
            size: self.size as u32,
            port,
        }
    }

    fn connect(&self, rank: usize, address: &str) -> Result<TcpStream> {
        loop {
            let attempt = || {
                let no_address = || io::Error::other("no such address");
                let address = address.to_socket_addrs()?.next().ok_or_else(no_address)?;
                let stream = TcpStream::connect_timeout(&address, self.left())?;
                stream.set_read_timeout(Some(self.left()))?;
                stream.set_write_timeout(Some(self.left()))?;
                Ok(stream)
            };
            match attempt() {
                Ok(stream) => return Ok(stream),
                Err(_) if Instant::now() + PAUSE < self.end => thread::sleep(PAUSE),
                Err(error) => {
                    let error: io::Error = error;
                    let reason = format!(
                        "cannot be reached at {address} within {} s: {error}",
                        self.limit.as_secs()
                    );
                    return Err(Error::Rank { rank, reason });
                }
            }
        }
    }

    /// The next connection of this group, of a rank for which `missing` says so.
    fn accept(
        &self,
        listener: &TcpListener,
        missing: &dyn Fn() -> Vec<usize>,
    ) -> Result<(TcpStream, Hello)> {
        listener.set_nonblocking(true).map_err(here(self.rank))?;
        loop {
            match listener.accept() {
                Ok((stream, _)) => {
                    let ready = || {
                        stream.set_nonblocking(false)?;
                        // Whoever says nothing must not keep others from coming.
                        stream.set_read_timeout(Some(self.left().min(Duration::from_secs(2))))?;
                        stream.set_write_timeout(Some(self.left()))
                    };
                    let hello = ready().ok().and_then(|()| Hello::read(&stream));
                    let Some(hello) = hello.filter(|hello| hello.token == self.id.token) else {
                        continue;
                    };
                    stream
                        .set_read_timeout(Some(self.left()))
                        .map_err(|error| broken(hello.rank as usize, error))?;
                    return Ok((stream, hello));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(here(self.rank)(error)),
            }
            if Instant::now() >= self.end {
                let missing = missing();
                let reason = format!(
                    "did not come within {} s ({} of {} ranks are missing: {missing:?})",
                    self.limit.as_secs(),
                    missing.len(),
                    self.size
                );
                return Err(Error::Rank {
                    rank: missing.first().copied().unwrap_or(0),
                    reason,
                });
            }
            thread::sleep(PAUSE);
        }
    }

    /// Rank 0: takes everyone in, then tells each where the others listen, or what is wrong.
    fn receive(&self, listener: &TcpListener, links: &mut [Option<TcpStream>]) -> Result<()> {
        let mut ports = vec![0; self.size];
        let mut wrong = Ok(());
        while wrong.is_ok() && links.iter().skip(1).any(Option::is_none) {
            let missing = || (1..self.size).filter(|&r| links[r].is_none()).collect();
            let met = self.accept(listener, &missing);
            let (stream, hello) = match met {
                Ok(met) => met,
                Err(error) => {
                    wrong = Err(error);
                    break;
                }
            };
            let rank = hello.rank as usize;
            let reason = match links.get(rank) {
                _ if hello.size as usize != self.size => Some(format!(
                    "counts {} ranks where rank 0 counts {}",
                    hello.size, self.size
                )),
                None | Some(Some(_)) if rank < self.size => Some("is there twice".to_owned()),
                None => Some(format!("is none of {} ranks", self.size)),
                _ if rank == 0 => Some("is there twice".to_owned()),
                _ => None,
            };
            match reason {
                None => {
                    links[rank] = Some(stream);
                    ports[rank] = hello.port;
                }
                Some(reason) => {
                    let _ = write_text(&stream, &format!("!{rank} {reason}"));
                    wrong = Err(Error::Rank { rank, reason });
                }
            }
        }
        let mut said = String::new();
        match &wrong {
            Ok(()) => {
                for (link, port) in links.iter().zip(&ports).skip(1) {
                    let address = link.as_ref().map(|link| link.peer_addr()).transpose();
                    let address = address.map_err(|error| broken(0, error))?;
                    let address = address.map(|a| SocketAddr::new(a.ip(), *port).to_string());
                    said += &format!("{}\n", address.unwrap_or_default());
                }
            }
            Err(Error::Rank { rank, reason }) => said = format!("!{rank} {reason}"),
            Err(other) => said = format!("!0 {other}"),
        }
        for (rank, link) in links.iter().enumerate() {
            if let Some(link) = link {
                let sent = write_text(link, &said);
                wrong = wrong.and(sent.map_err(|error| broken(rank, error)));
            }
        }
        wrong
    }

    /// Any other rank: goes to rank 0, then to those before it, and takes in those behind it.
    fn go(&self, links: &mut [Option<TcpStream>]) -> Result<()> {
        let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)).map_err(here(self.rank))?;
        let port = listener.local_addr().map_err(here(self.rank))?.port();
        let first = self.connect(0, &self.id.address)?;
        self.hello(port).write(&first).map_err(|e| broken(0, e))?;
        let said = read_text(&first).map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => Error::Rank {
                rank: 0,
                reason: format!(
                    "has not said within {} s who is there",
                    self.limit.as_secs()
                ),
            },
            _ => broken(0, error),
        })?;
        if let Some((rank, reason)) = said.strip_prefix('!').and_then(|s| s.split_once(' ')) {
            return Err(Error::Rank {
                rank: rank.parse().unwrap_or(0),
                reason: reason.to_owned(),
            });
        }
        links[0] = Some(first);
        // Those of ranks 1 to here.
        for (rank, address) in (1..self.rank).zip(said.lines()) {
            let link = self.connect(rank, address)?;
            self.hello(0).write(&link).map_err(|e| broken(rank, e))?;
            links[rank] = Some(link);
        }
        while links.iter().skip(self.rank + 1).any(Option::is_none) {
            let behind = self.rank + 1..self.size;
            let missing = || behind.clone().filter(|&r| links[r].is_none()).collect();
            let (stream, hello) = self.accept(&listener, &missing)?;
            if let Some(place) = links.get_mut(hello.rank as usize) {
                *place = Some(stream);
            }
        }
        Ok(())
    }
}

/// Meets the other ranks. Every rank learns what is wrong with any.
pub(super) fn meet(id: &Id, rank: usize, size: usize, limit: Duration) -> Result<Mesh> {
    let meeting = Meeting {
        id,
        rank,
        size,
        end: Instant::now() + limit,
        limit,
    };
    let mut links: Vec<Option<TcpStream>> = (0..size).map(|_| None).collect();
    if rank == 0 {
        let port = id.address.rsplit(':').next().and_then(|p| p.parse().ok());
        let port: u16 =
            port.ok_or_else(|| Error::operand("address", format!("{} names no port", id.address)))?;
        let made = LISTENERS
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .as_mut()
            .and_then(|listeners| listeners.remove(&port));
        let listener = match made {
            Some(listener) => listener,
            None => {
                TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).map_err(|error| Error::Rank {
                    rank: 0,
                    reason: format!("cannot listen at port {port}: {error}"),
                })?
            }
        };
        meeting.receive(&listener, &mut links)?;
    } else {
        meeting.go(&mut links)?;
    }
    Mesh::new(
        rank,
        links.into_iter().map(|link| link.map(Link::Tcp)).collect(),
    )
}
