//! Packed modules. A file consists of zstd frames, which are unpacked in parallel, followed by the seek table of zstd's
//! seekable format (github.com/facebook/zstd, contrib/seekable_format). `zstd -d` reads the files too. In PTX, register
//! numbers are stored as differences ([`pack_text`]).

extern crate std;

mod registers;

use ruzstd::decoding::FrameDecoder;
use ruzstd::encoding::{CompressionLevel, compress_to_vec};
use std::format;
use std::string::String;
use std::thread;
use std::vec;
use std::vec::Vec;

/// Bytes of machine code in a frame. Smaller frames are unpacked by more threads but repeat the content of other
/// frames: with frames of 256 KiB, files are a quarter longer.
pub const FRAME: usize = 1 << 20;

/// Magic numbers of the skippable frame that holds the table, and of its end.
const SKIPPABLE: u32 = 0x184D_2A5E;
const SEEKABLE: u32 = 0x8F92_EAB1;

/// Bytes before the table: magic number, length. Bytes after it: number of frames, a byte of flags, magic number.
const HEADER: usize = 8;
const FOOTER: usize = 9;

/// Max number of threads: starting a thread takes about as long as unpacking a frame.
const THREADS: usize = 8;

/// Splits `content` into pieces of `frame` bytes, compresses each with `compress`, and joins the frames.
pub fn pack(content: &[u8], frame: usize, compress: impl Fn(&[u8]) -> Vec<u8>) -> Vec<u8> {
    let (mut packed, mut table) = (Vec::new(), Vec::new());
    for piece in content.chunks(frame.max(1)) {
        let one = compress(piece);
        table.extend((one.len() as u32).to_le_bytes());
        table.extend((piece.len() as u32).to_le_bytes());
        packed.extend(one);
    }
    let frames = (table.len() / 8) as u32;
    packed.extend(SKIPPABLE.to_le_bytes());
    packed.extend(((table.len() + FOOTER) as u32).to_le_bytes());
    packed.extend(table);
    packed.extend(frames.to_le_bytes());
    packed.push(0);
    packed.extend(SEEKABLE.to_le_bytes());
    packed
}

/// Packs PTX into one frame. The number of each register is stored as the difference from the number at its index in an
/// earlier line. PTX is unpacked only before the driver compiles it for seconds, so one thread is enough.
///
/// # Errors
/// A text that [`unpack_text`] would not return: register numbers with leading zeros or more than nine digits, which
/// compilers do not write.
pub fn pack_text(text: &[u8], compress: impl Fn(&[u8]) -> Vec<u8>) -> Result<Vec<u8>, String> {
    let differences = registers::to_differences(text);
    if registers::from_differences(&differences) != text {
        return Err(String::from(
            "a register number has leading zeros or more than nine digits; expected PTX as compilers write it",
        ));
    }
    Ok(pack(&differences, differences.len(), compress))
}

/// Unpacks the output of [`pack_text`].
///
/// # Errors
/// The reason why the bytes are invalid.
pub fn unpack_text(packed: &[u8]) -> Result<Vec<u8>, String> {
    Ok(registers::from_differences(&unpack(packed)?))
}

/// Compresses quickly, for modules that stay on this machine.
pub fn compress_quickly(piece: &[u8]) -> Vec<u8> {
    compress_to_vec(piece, CompressionLevel::Fastest)
}

/// Unpacks the output of [`pack`].
///
/// # Errors
/// The reason why the bytes are invalid.
pub fn unpack(packed: &[u8]) -> Result<Vec<u8>, String> {
    let broken = |why: &str| format!("{} bytes of a packed module: {why}", packed.len());
    let frames = frames(packed).ok_or_else(|| broken("no whole table at the end"))?;
    let bytes = frames.iter().map(|(_, bytes)| bytes).sum();
    let mut content = Vec::new();
    if content.try_reserve_exact(bytes).is_err() {
        return Err(broken(&format!("no memory for the {bytes} bytes in it")));
    }
    content.resize(bytes, 0);
    let mut rest = &mut content[..];
    let mut jobs = vec![];
    for (frame, bytes) in frames {
        let (own, others) = rest.split_at_mut(bytes);
        jobs.push((frame, own));
        rest = others;
    }
    let threads = thread::available_parallelism().map_or(1, usize::from);
    let each = jobs.len().div_ceil(threads.min(THREADS)).max(1);
    let unpacked =
        |jobs: &mut [(&[u8], &mut [u8])]| jobs.iter_mut().all(|(from, to)| frame(from, to));
    let whole = match jobs.len() <= each {
        true => unpacked(&mut jobs),
        false => thread::scope(|scope| {
            let parts = jobs.chunks_mut(each);
            let running: Vec<_> = parts.map(|part| scope.spawn(move || unpacked(part))).collect();
            // All threads are joined, even after a failure.
            let results: Vec<_> = running.into_iter().map(|thread| thread.join()).collect();
            results.into_iter().all(|result| result.unwrap_or(false))
        }),
    };
    match whole {
        true => Ok(content),
        false => Err(broken("a frame that does not unpack")),
    }
}

/// Returns each frame, and the number of bytes in it after unpacking. `None` if the seek table is invalid.
fn frames(packed: &[u8]) -> Option<Vec<(&[u8], usize)>> {
    let word = |at: usize| {
        let bytes = packed.get(at..at.checked_add(4)?)?;
        Some(u32::from_le_bytes(bytes.try_into().ok()?))
    };
    let footer = packed.len().checked_sub(FOOTER)?;
    if word(footer + 5)? != SEEKABLE {
        return None;
    }
    let table = footer.checked_sub((word(footer)? as usize).checked_mul(8)?)?;
    let end = table.checked_sub(HEADER)?;
    let (mut at, mut found) = (0, Vec::new());
    for entry in (table..footer).step_by(8) {
        let next = at + word(entry)? as usize;
        found.push((packed[..end].get(at..next)?, word(entry + 4)? as usize));
        at = next;
    }
    (at == end).then_some(found)
}

/// Unpacks one frame. Returns whether it is valid and fills `to` exactly.
fn frame(packed: &[u8], to: &mut [u8]) -> bool {
    FrameDecoder::new().decode_all(packed, to).is_ok_and(|bytes| bytes == to.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_packed_comes_back() {
        for bytes in [0, 1, FRAME - 1, FRAME, FRAME + 1, 5 * FRAME + 7] {
            let content: Vec<u8> = (0..bytes).map(|i| (i / 3) as u8).collect();
            let packed = pack(&content, FRAME, compress_quickly);
            assert_eq!(unpack(&packed).as_ref(), Ok(&content), "{bytes}");
        }
    }

    #[test]
    fn text_comes_back() {
        let line =
            |i: u32| format!("\tadd.s32 \t%r{}, %r{}, %r7;\n\t@%p{i} bra $L{i};\n", 3 * i, 900 - i);
        let mut text: String = (0..300).map(line).collect();
        text += "mov.u32 %r1, %tid.x; %\n%r-5 %rd-, %rd12345678901, %f999999999%f0";
        let packed = pack_text(text.as_bytes(), compress_quickly).unwrap();
        assert_eq!(unpack_text(&packed).unwrap(), text.as_bytes());
        assert!(packed.len() < pack(text.as_bytes(), FRAME, compress_quickly).len() / 2);
        let error = pack_text(b"mov.u32 %r007, 1;\n", compress_quickly).unwrap_err();
        assert!(error.contains("leading zeros"), "{error}");
    }

    #[test]
    fn damage_is_an_error() {
        let content: Vec<u8> = (0..3 * FRAME).map(|i| (i % 251) as u8).collect();
        let packed = pack(&content, FRAME, compress_quickly);
        for end in [0, 4, 9, 40, packed.len() / 2, packed.len() - 1] {
            assert!(unpack(&packed[..end]).is_err(), "cut at {end}");
        }
        let words = packed.len() - FOOTER - 24;
        for at in [0, 2, words, words + 4, packed.len() - FOOTER] {
            let mut other = packed.clone();
            other[at] ^= 0xff;
            assert!(unpack(&other).is_err(), "byte {at}");
        }
    }
}
