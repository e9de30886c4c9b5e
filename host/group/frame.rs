//! Connections between two ranks, and the frames that they transfer.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// Connection between two processes, or between two threads of one process.
#[derive(Debug)]
pub(super) enum Link {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Link {
    /// Sets the time without a byte after which reads and writes fail.
    pub(super) fn set_timeout(&self, limit: Duration) -> io::Result<()> {
        match self {
            Link::Tcp(s) => {
                s.set_nodelay(true)?;
                s.set_read_timeout(Some(limit))?;
                s.set_write_timeout(Some(limit))
            }
            Link::Unix(s) => {
                s.set_read_timeout(Some(limit))?;
                s.set_write_timeout(Some(limit))
            }
        }
    }

    pub(super) fn end_writing(&self) {
        // An error means that the connection is already closed.
        let _ = match self {
            Link::Tcp(s) => s.shutdown(Shutdown::Write),
            Link::Unix(s) => s.shutdown(Shutdown::Write),
        };
    }
}

impl Read for &Link {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        match self {
            Link::Tcp(s) => (&mut &*s).read(to),
            Link::Unix(s) => (&mut &*s).read(to),
        }
    }
}

impl Write for &Link {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        match self {
            Link::Tcp(s) => (&mut &*s).write(from),
            Link::Unix(s) => (&mut &*s).write(from),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Meaning of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Data = 0,
    Beat = 1,
    Leave = 2,
    Fail = 3,
}

/// Maximum number of bytes of one data message.
pub(super) const MAX_DATA: u64 = 1 << 36;
/// Maximum number of bytes of an error text.
const MAX_TEXT: usize = 1 << 16;
/// Memory for a frame is reserved in chunks of at least this many bytes, as they arrive.
const PIECE: usize = 1 << 20;

impl Kind {
    const ALL: [Kind; 4] = [Kind::Data, Kind::Beat, Kind::Leave, Kind::Fail];

    fn limit(self) -> u64 {
        match self {
            Kind::Data => MAX_DATA,
            Kind::Beat | Kind::Leave => 0,
            Kind::Fail => MAX_TEXT as u64,
        }
    }
}

/// Bytes of a header: kind, step, and number of bytes that follow.
const HEADER: usize = 24;

/// Writes a frame. An error text is truncated at its limit.
pub(super) fn write(mut to: impl Write, kind: Kind, step: u64, bytes: &[u8]) -> io::Result<()> {
    let bytes = match kind {
        Kind::Fail => &bytes[..bytes.len().min(MAX_TEXT)],
        _ => bytes,
    };
    let mut header = [0; HEADER];
    header[0] = kind as u8;
    header[8..16].copy_from_slice(&step.to_le_bytes());
    header[16..].copy_from_slice(&(bytes.len() as u64).to_le_bytes());
    to.write_all(&header)?;
    to.write_all(bytes)
}

/// Reads a frame. Returns its kind, step and bytes.
///
/// # Errors
/// Errors of the connection; an unknown kind; a length above the limit of its kind, or one that exceeds the memory of
/// this process. Reserves at most twice as many bytes as have arrived.
pub(super) fn read(mut from: impl Read) -> io::Result<(Kind, u64, Vec<u8>)> {
    let mut head = [0; HEADER];
    from.read_exact(&mut head)?;
    let word = |at: usize| u64::from_le_bytes(head[at..at + 8].try_into().unwrap_or_default());
    let kind = Kind::ALL.get(usize::from(head[0]));
    let kind = *kind.ok_or_else(|| {
        io::Error::other(format!("it sent a frame of kind {}, and the kinds are 0 to 3", head[0]))
    })?;
    let bytes = word(16);
    if bytes > kind.limit() {
        return Err(io::Error::other(format!(
            "it sent a {kind:?} frame of {bytes} bytes, and the limit is {}",
            kind.limit()
        )));
    }
    let bytes = usize::try_from(bytes).map_err(io::Error::other)?;
    let mut data: Vec<u8> = Vec::new();
    while data.len() < bytes {
        let old = data.len();
        let piece = (bytes - old).min(PIECE.max(old));
        data.try_reserve_exact(piece).map_err(|_| {
            io::Error::other(format!("there is no memory for a frame of {bytes} bytes"))
        })?;
        data.resize(old + piece, 0);
        from.read_exact(&mut data[old..])?;
    }
    Ok((kind, word(8), data))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_arrive_as_they_were_written() {
        for bytes in [vec![], vec![7; 3], (0..5 * PIECE).map(|i| i as u8).collect()] {
            let mut sent = Vec::new();
            write(&mut sent, Kind::Data, 9, &bytes).unwrap();
            assert!(read(&sent[..]).unwrap() == (Kind::Data, 9, bytes));
            assert!(read(&sent[..sent.len() - 1]).is_err());
        }
        let mut sent = Vec::new();
        write(&mut sent, Kind::Fail, 1, &vec![b'x'; MAX_TEXT + 1]).unwrap();
        assert_eq!(read(&sent[..]).unwrap().2.len(), MAX_TEXT);
    }

    #[test]
    fn frames_above_the_limit_are_refused_before_memory_is_reserved() {
        let claim = |kind: u8, bytes: u64| {
            let mut head = [0; HEADER];
            head[0] = kind;
            head[16..].copy_from_slice(&bytes.to_le_bytes());
            // An endless stream of bytes: a reader that accepts the length never returns.
            read(head.chain(io::repeat(1))).unwrap_err().to_string()
        };
        for (kind, bytes, wanted) in [
            (
                0,
                u64::MAX,
                "a Data frame of 18446744073709551615 bytes, and the limit is 68719476736",
            ),
            (1, 1, "a Beat frame of 1 bytes, and the limit is 0"),
            (2, 1 << 40, "a Leave frame of 1099511627776 bytes, and the limit is 0"),
            (3, 1 << 17, "a Fail frame of 131072 bytes, and the limit is 65536"),
            (4, 0, "a frame of kind 4, and the kinds are 0 to 3"),
        ] {
            let error = claim(kind, bytes);
            assert!(error.contains(wanted), "{error}");
        }
    }
}
