//! First messages of a connection. Each end proves that it has the token of the group. The token is never sent.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use super::token::{PROOF_BYTES, TOKEN_BYTES, Token, random_bytes};

/// First bytes of a connection of this library.
const MAGIC: [u8; 8] = *b"einsprs2";
/// Time limit for both proofs. A slower rank connects again.
const HANDSHAKE: Duration = Duration::from_secs(5);
/// Prefixes of the two proofs. They differ, so that a proof cannot be sent back as the other one.
const LISTENING: &[u8] = b"listening";
const CONNECTING: &[u8] = b"connecting";

/// Description that a rank sends of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Hello {
    pub rank: u32,
    pub size: u32,
    /// Address at which the rank listens for other ranks.
    pub address: SocketAddr,
}

const HELLO: usize = 26;

impl Hello {
    fn to_bytes(self) -> [u8; HELLO] {
        let address = match self.address.ip() {
            IpAddr::V4(address) => address.to_ipv6_mapped(),
            IpAddr::V6(address) => address,
        };
        let mut bytes = [0; HELLO];
        bytes[..4].copy_from_slice(&self.rank.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.size.to_le_bytes());
        bytes[8..24].copy_from_slice(&address.octets());
        bytes[24..].copy_from_slice(&self.address.port().to_le_bytes());
        bytes
    }

    fn of_bytes(bytes: &[u8; HELLO]) -> Hello {
        let word = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
        let address = Ipv6Addr::from(std::array::from_fn(|i| bytes[8 + i]));
        Hello {
            rank: word(0),
            size: word(4),
            address: SocketAddr::new(
                IpAddr::V6(address).to_canonical(),
                u16::from_le_bytes([bytes[24], bytes[25]]),
            ),
        }
    }
}

/// Reads exactly `N` bytes before `end`, even if they arrive slowly.
fn read<const N: usize>(mut from: &TcpStream, end: Instant) -> io::Result<[u8; N]> {
    let (mut bytes, mut have) = ([0; N], 0);
    while have < N {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        from.set_read_timeout(Some(left))?;
        have += match from.read(&mut bytes[have..])? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            read => read,
        };
    }
    Ok(bytes)
}

/// Messages in order: magic bytes and a nonce; a nonce and a proof; a hello and a proof.
type First = [u8; MAGIC.len() + TOKEN_BYTES];
type Second = [u8; TOKEN_BYTES + PROOF_BYTES];
type Third = [u8; HELLO + PROOF_BYTES];

/// Handshake of the end that connects.
///
/// # Errors
/// Errors of the connection; [`io::ErrorKind::PermissionDenied`] if the other end has a different token.
pub(super) fn connecting(
    mut to: &TcpStream,
    token: Token,
    hello: Hello,
    limit: Duration,
) -> io::Result<()> {
    let limit = limit.min(HANDSHAKE);
    let end = Instant::now() + limit;
    to.set_write_timeout(Some(limit))?;
    let own = random_bytes()?;
    to.write_all(&[&MAGIC[..], &own].concat())?;
    let second: Second = read(to, end)?;
    let (theirs, proof) = second.split_at(TOKEN_BYTES);
    if proof != token.proof(&[LISTENING, &own, theirs].concat()) {
        return Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            "a program listens there that has another token",
        ));
    }
    let hello = hello.to_bytes();
    let proof = token.proof(&[CONNECTING, &own, theirs, &hello].concat());
    to.write_all(&[&hello[..], &proof].concat())
}

/// Handshake of the end that listens. Returns the hello of the connected rank, or `None` for a program without the
/// token.
pub(super) fn listening(mut to: &TcpStream, token: Token) -> io::Result<Option<Hello>> {
    let end = Instant::now() + HANDSHAKE;
    to.set_write_timeout(Some(HANDSHAKE))?;
    let first: First = read(to, end)?;
    let (magic, theirs) = first.split_at(MAGIC.len());
    if magic != MAGIC {
        return Ok(None);
    }
    let own = random_bytes()?;
    let proof = token.proof(&[LISTENING, theirs, &own].concat());
    to.write_all(&[&own[..], &proof].concat())?;
    let third: Third = read(to, end)?;
    let (hello, proof) = third.split_at(HELLO);
    let expected = token.proof(&[CONNECTING, theirs, &own, hello].concat());
    let hello = hello.first_chunk().map(Hello::of_bytes);
    Ok(hello.filter(|_| proof == expected))
}

/// Writes the length of a text, then the text.
pub(super) fn write_text(mut to: &TcpStream, text: &str) -> io::Result<()> {
    to.write_all(&(text.len() as u32).to_le_bytes())?;
    to.write_all(text.as_bytes())
}

/// Reads a text of at most `limit` bytes.
pub(super) fn read_text(mut from: &TcpStream, limit: usize) -> io::Result<String> {
    let mut length = [0; 4];
    from.read_exact(&mut length)?;
    let length = u32::from_le_bytes(length) as usize;
    if length > limit {
        let reason = format!("it sent a text of {length} bytes, and the limit is {limit}");
        return Err(io::Error::other(reason));
    }
    let mut text = vec![0; length];
    from.read_exact(&mut text)?;
    String::from_utf8(text).map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::thread;

    use super::*;

    fn hello() -> Hello {
        Hello { rank: 3, size: 5, address: "192.0.2.7:65535".parse().unwrap() }
    }

    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let connecting = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (connecting, listener.accept().unwrap().0)
    }

    /// Results of both ends.
    fn meet(tokens: [&str; 2]) -> (io::Result<()>, Option<Hello>) {
        let [left, right] = tokens.map(Token::of_text);
        let (connecting_end, listening_end) = pair();
        let other = thread::spawn(move || listening(&listening_end, right).ok().flatten());
        let found = connecting(&connecting_end, left, hello(), HANDSHAKE);
        drop(connecting_end);
        (found, other.join().unwrap())
    }

    #[test]
    fn ranks_with_the_same_token_recognize_each_other() {
        let (found, other) = meet(["secret", "secret"]);
        assert!(found.is_ok() && other == Some(hello()));
        let (found, other) = meet(["secret", "Secret"]);
        assert_eq!(found.unwrap_err().kind(), io::ErrorKind::PermissionDenied);
        assert_eq!(other, None);
        for address in ["[2001:db8::1]:1", "[::1]:2", "127.0.0.1:3"] {
            let hello = Hello { address: address.parse().unwrap(), ..hello() };
            assert_eq!(Hello::of_bytes(&hello.to_bytes()), hello);
        }
    }

    #[test]
    fn a_program_that_sends_the_proof_back_is_refused() {
        let (mut stranger, own) = pair();
        let other = thread::spawn(move || listening(&own, Token::of_text("secret")).unwrap());
        stranger.write_all(&[&MAGIC[..], &[1; TOKEN_BYTES]].concat()).unwrap();
        let mut second: Second = [0; TOKEN_BYTES + PROOF_BYTES];
        stranger.read_exact(&mut second).unwrap();
        let proof = &second[TOKEN_BYTES..];
        stranger.write_all(&[&hello().to_bytes()[..], proof].concat()).unwrap();
        assert_eq!(other.join().unwrap(), None);
    }

    #[test]
    fn a_program_that_sends_a_byte_a_second_is_dropped_in_time() {
        let (mut stranger, own) = pair();
        let start = Instant::now();
        let other = thread::spawn(move || listening(&own, Token::of_text("secret")));
        while !other.is_finished() && stranger.write_all(b"e").is_ok() {
            thread::sleep(Duration::from_millis(500));
        }
        assert!(other.join().unwrap().is_err());
        assert!(start.elapsed() < HANDSHAKE + Duration::from_secs(4));
    }
}
