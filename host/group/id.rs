//! Id that a launcher passes to every rank: the address of rank 0, and the secret of the group.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, TcpListener};
use std::sync::Mutex;

use super::address::{self, outgoing};
use super::mesh::lock;
use super::token::{Secret, TOKEN_BYTES, Token};
use crate::error::{Error, Result};

/// Size of an encoded [`Id`] in bytes.
pub(super) const ID_BYTES: usize = 64;
/// Bytes of the host name or address in an encoded [`Id`].
const HOST_BYTES: usize = ID_BYTES - TOKEN_BYTES - 2;

/// Address of rank 0, and the secret that proves membership in the group.
#[derive(Clone, Debug)]
pub(super) struct Id {
    pub host: String,
    pub port: u16,
    pub secret: Secret,
}

impl Id {
    pub(super) fn from_bytes(bytes: &[u8]) -> Result<Id> {
        let wrong = || Error::operand("id", "must be the 64 bytes of `Group::unique_id`");
        let bytes: &[u8; ID_BYTES] = bytes.try_into().map_err(|_| wrong())?;
        let (token, rest) = bytes.split_first_chunk().ok_or_else(wrong)?;
        let (port, host) = rest.split_first_chunk().ok_or_else(wrong)?;
        let end = host.iter().position(|&b| b == 0).unwrap_or(host.len());
        let host = std::str::from_utf8(&host[..end]).map_err(|_| wrong())?;
        if host.is_empty() {
            return Err(wrong());
        }
        Ok(Id {
            host: host.to_owned(),
            port: u16::from_le_bytes(*port),
            secret: Secret::Given(Token(*token)),
        })
    }

    /// Addresses of the interface that the environment variable names. Ranks that share a token file use loopback only.
    pub(super) fn interface(&self) -> Result<Option<Vec<IpAddr>>> {
        match self.secret {
            Secret::Given(_) => address::of_interface(),
            Secret::Shared(_) => Ok(None),
        }
    }

    /// Address of rank 0, for messages.
    pub(super) fn place(&self) -> String {
        format!("{}:{}", self.host, self.port)
    }
}

/// Listeners of ids that this process created and no group has used yet.
static LISTENERS: Mutex<Option<HashMap<Token, TcpListener>>> = Mutex::new(None);

/// Creates the bytes of a new id. Rank 0 must be in this process.
pub(super) fn unique_id() -> Result<[u8; ID_BYTES]> {
    let own = address::of_interface()?.and_then(|own| own.first().copied());
    let own = own.unwrap_or_else(outgoing);
    let listener = TcpListener::bind((own, 0)).map_err(cannot_listen(0, &own.to_string()))?;
    let port = listener.local_addr().map_err(cannot_listen(0, &own.to_string()))?.port();
    let token = Token::random().map_err(|error| Error::Rank {
        rank: 0,
        reason: format!("the system gives no random bytes for a token: {error}"),
    })?;
    let host = own.to_string();
    let mut bytes = [0; ID_BYTES];
    bytes[..TOKEN_BYTES].copy_from_slice(&token.0);
    bytes[TOKEN_BYTES..][..2].copy_from_slice(&port.to_le_bytes());
    let to = bytes[ID_BYTES - HOST_BYTES..].get_mut(..host.len());
    to.ok_or_else(|| Error::operand("id", format!("the address {host} is too long")))?
        .copy_from_slice(host.as_bytes());
    lock(&LISTENERS).get_or_insert_default().insert(token, listener);
    Ok(bytes)
}

pub(super) fn cannot_listen(rank: usize, place: &str) -> impl Fn(io::Error) -> Error {
    move |error| Error::Rank { rank, reason: format!("cannot listen at {place}: {error}") }
}

/// Removes and returns the listener of an id that this process created.
pub(super) fn take_listener(id: &Id) -> Option<TcpListener> {
    match &id.secret {
        Secret::Given(token) => lock(&LISTENERS).as_mut()?.remove(token),
        Secret::Shared(_) => None,
    }
}
