//! Secrets of groups: 128 bits that both ends of every connection prove to have, and the file in which ranks on one
//! machine share them.

use std::fmt;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::hash::Hasher;
#[expect(
    deprecated,
    reason = "SipHash-2-4 under a key of the caller, which `DefaultHasher` does not accept"
)]
use std::hash::SipHasher;
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};

/// Bytes of a [`Token`], and of a nonce.
pub(super) const TOKEN_BYTES: usize = 16;
/// Bytes of a proof.
pub(super) const PROOF_BYTES: usize = 8;

/// Reads random bytes from the operating system.
pub(super) fn random_bytes() -> io::Result<[u8; TOKEN_BYTES]> {
    let mut bytes = [0; TOKEN_BYTES];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// Secret of a group. It is never sent between ranks: each end of a connection proves that it has the token.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Token(pub [u8; TOKEN_BYTES]);

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

/// SipHash-2-4, a message authentication code of 64 bits.
#[expect(deprecated, reason = "see the import")]
fn sip_hash(key: [u64; 2], message: &[u8]) -> u64 {
    let mut hasher = SipHasher::new_with_keys(key[0], key[1]);
    hasher.write(message);
    hasher.finish()
}

impl Token {
    pub(super) fn random() -> io::Result<Token> {
        random_bytes().map(Token)
    }

    /// Derives a token from a text of any length.
    pub(super) fn of_text(text: &str) -> Token {
        let mut bytes = [0; TOKEN_BYTES];
        for (half, to) in bytes.chunks_exact_mut(8).enumerate() {
            to.copy_from_slice(&sip_hash([half as u64, 0], text.as_bytes()).to_le_bytes());
        }
        Token(bytes)
    }

    /// Computes the authentication code of a message. Only an owner of the token can compute it.
    pub(super) fn proof(self, message: &[u8]) -> [u8; PROOF_BYTES] {
        let (low, high) = self.0.split_at(8);
        let word = |half: &[u8]| half.iter().rev().fold(0, |sum, &b| sum << 8 | u64::from(b));
        sip_hash([word(low), word(high)], message).to_le_bytes()
    }
}

/// Source of the token.
#[derive(Clone, Debug)]
pub(super) enum Secret {
    /// From the launcher.
    Given(Token),
    /// Created by rank 0 and shared with processes of the same user on the same machine.
    Shared(TokenFile),
}

/// Token file in a directory that only the user can access.
#[derive(Clone, Debug)]
pub(super) struct TokenFile(PathBuf);

unsafe extern "C" {
    safe fn geteuid() -> u32;
}

impl TokenFile {
    /// Returns the file for the group whose rank 0 listens at this port.
    pub(super) fn at_port(port: u16) -> TokenFile {
        let directory = std::env::temp_dir().join(format!("einsparse-{}", geteuid()));
        TokenFile(directory.join(format!("token-{port}")))
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }

    /// Writes a new token. The returned guard removes the file.
    pub(super) fn create(&self) -> Result<(Token, Removed<'_>)> {
        let directory = self.directory();
        let made = DirBuilder::new().mode(0o700).create(directory);
        match made {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                return Err(self.wrong("cannot be written", &error));
            }
            _ => self.check_directory()?,
        }
        let write = || {
            let token = Token::random()?;
            // Renamed after it is complete, so that no rank reads a partial token or that of an earlier group.
            let name = format!("{}.{}", self.0.display(), std::process::id());
            let beside = Path::new(&name);
            let mut options = OpenOptions::new();
            let _ = fs::remove_file(beside);
            let mut file = options.write(true).create_new(true).mode(0o600).open(beside)?;
            file.write_all(&token.0)?;
            fs::rename(beside, &self.0)?;
            Ok(token)
        };
        let token = write().map_err(|error: io::Error| self.wrong("cannot be written", &error))?;
        Ok((token, Removed(&self.0)))
    }

    /// Reads the current token; `None` before rank 0 has written it.
    pub(super) fn read(&self) -> Result<Option<Token>> {
        if fs::symlink_metadata(self.directory()).is_err() {
            return Ok(None);
        }
        self.check_directory()?;
        let bytes = match fs::read(&self.0) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(self.wrong("cannot be read", &error)),
        };
        Ok(bytes.try_into().ok().map(Token))
    }

    fn directory(&self) -> &Path {
        self.0.parent().unwrap_or(Path::new("/"))
    }

    /// Checks that only the user can access the directory; others could place their own token in it.
    fn check_directory(&self) -> Result<()> {
        let directory = self.directory();
        let found = fs::symlink_metadata(directory);
        let found = found.map_err(|error| self.wrong("is out of reach", &error))?;
        if found.is_dir() && found.uid() == geteuid() && found.mode() & 0o077 == 0 {
            return Ok(());
        }
        Err(self.refused(io::ErrorKind::PermissionDenied, format!(
            "the token file is not safe: `{}` must be a directory of user {} with mode 700, and is a {} of user {} \
             with mode {:o}; remove it, or set EINSPARSE_TOKEN to the same secret text for all ranks",
            directory.display(),
            geteuid(),
            if found.is_dir() { "directory" } else { "file or link" },
            found.uid(),
            found.mode() & 0o777
        )))
    }

    fn wrong(&self, what: &str, error: &io::Error) -> Error {
        self.refused(error.kind(), format!("the token file {what}: {error}"))
    }

    fn refused(&self, kind: io::ErrorKind, reason: String) -> Error {
        Error::Io { path: self.0.display().to_string(), line: None, kind, reason }
    }
}

/// Guard that removes a token file.
#[derive(Debug)]
pub(super) struct Removed<'a>(&'a Path);

impl Drop for Removed<'_> {
    fn drop(&mut self) {
        // Another group at the same port may have replaced the file. Its rendezvous then ends with an error.
        let _ = fs::remove_file(self.0);
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn proofs_depend_on_every_bit_of_token_and_message() {
        // Test vectors of the reference implementation of SipHash-2-4: key 00 01 .. 0f, messages of 0 and 8 bytes.
        let token = Token(std::array::from_fn(|i| i as u8));
        let vector = [0x31, 0x0e, 0x0e, 0xdd, 0x47, 0xdb, 0x6f, 0x72];
        assert_eq!(token.proof(&[]), vector);
        assert_eq!(
            token.proof(&[0, 1, 2, 3, 4, 5, 6, 7]),
            [0x62, 0x24, 0x93, 0x9a, 0x79, 0xf5, 0xf5, 0x93]
        );
        for bit in 0..128 {
            let mut other = token;
            other.0[bit / 8] ^= 1 << (bit % 8);
            assert_ne!(other.proof(&[]), vector, "bit {bit}");
        }
        let (one, two) = (Token::of_text("one"), Token::of_text("two"));
        assert!(one != two && one.0[..8] != one.0[8..]);
        assert_ne!(Token::random().unwrap(), Token::random().unwrap());
        assert_eq!(format!("{one:?}"), "Token(..)");
    }

    #[test]
    fn tokens_are_shared_in_a_directory_of_the_user_alone() {
        let directory =
            std::env::temp_dir().join(format!("einsparse-token-{}", std::process::id()));
        let file = TokenFile(directory.join("token-1"));
        assert_eq!(file.read().unwrap(), None);
        let (token, guard) = file.create().unwrap();
        assert_eq!(file.read().unwrap(), Some(token));
        let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o777;
        assert_eq!([mode(&directory), mode(file.path())], [0o700, 0o600]);
        // A killed rank leaves its file.
        std::mem::forget(guard);
        let (second, guard) = file.create().unwrap();
        assert!(second != token && file.read().unwrap() == Some(second));
        drop(guard);
        assert_eq!(file.read().unwrap(), None);
        fs::write(file.path(), [1; 3]).unwrap();
        assert_eq!(file.read().unwrap(), None);
        fs::set_permissions(&directory, fs::Permissions::from_mode(0o770)).unwrap();
        for error in [file.read().unwrap_err(), file.create().unwrap_err()] {
            assert!(error.to_string().contains("with mode 770"), "{error}");
        }
        fs::remove_dir_all(&directory).unwrap();
        let elsewhere = std::env::temp_dir().join(format!("einsparse-link-{}", std::process::id()));
        fs::create_dir(&elsewhere).unwrap();
        fs::set_permissions(&elsewhere, fs::Permissions::from_mode(0o700)).unwrap();
        std::os::unix::fs::symlink(&elsewhere, &directory).unwrap();
        assert!(file.create().unwrap_err().to_string().contains("is a file or link"));
        fs::remove_file(&directory).unwrap();
        fs::remove_dir(&elsewhere).unwrap();
    }
}
