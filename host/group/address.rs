//! Addresses at which ranks listen: those of one network interface, never of all interfaces.

use std::ffi::{CStr, c_char, c_int, c_uint};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, ToSocketAddrs, UdpSocket};

use crate::error::{Error, Result};

/// Environment variable with the name of the network interface at which this rank listens.
const INTERFACE: &str = "EINSPARSE_INTERFACE";

/// Resolves a host name to all its addresses, without duplicates, in the resolver's order.
pub(super) fn resolve(host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    let mut found: Vec<SocketAddr> = Vec::new();
    // URLs write IPv6 addresses in brackets.
    let host = host.trim_start_matches('[').trim_end_matches(']');
    for address in (host, port).to_socket_addrs()? {
        if !found.contains(&address) {
            found.push(address);
        }
    }
    match found.is_empty() {
        true => Err(io::Error::other(format!("the resolver gave 0 addresses of `{host}`"))),
        false => Ok(found),
    }
}

/// Returns whether packets to this host never leave the machine.
pub(super) fn is_loopback(host: &str) -> bool {
    resolve(host, 0).is_ok_and(|all| all.iter().all(|address| address.ip().is_loopback()))
}

/// Listens at each of these addresses that belongs to this machine.
///
/// # Errors
/// The last error if this process cannot listen at any of them.
pub(super) fn listen(addresses: &[SocketAddr]) -> io::Result<Vec<TcpListener>> {
    let mut listeners = Vec::new();
    let mut failed = io::Error::other("no address is given");
    for address in addresses {
        match TcpListener::bind(address) {
            Ok(listener) => listeners.push(listener),
            Err(error) => failed = error,
        }
    }
    match listeners.is_empty() {
        true => Err(failed),
        false => Ok(listeners),
    }
}

/// Returns the address by which other machines reach this one, or loopback without a network. Sends no packet.
pub(super) fn outgoing() -> IpAddr {
    let local = |own: IpAddr, to: IpAddr| {
        let socket = UdpSocket::bind((own, 0))?;
        socket.connect((to, 9))?;
        socket.local_addr().map(|address| address.ip())
    };
    // Address ranges reserved for documentation: their route is the default route.
    let v4 = local(Ipv4Addr::UNSPECIFIED.into(), Ipv4Addr::new(192, 0, 2, 1).into());
    let v6 = || {
        local(Ipv6Addr::UNSPECIFIED.into(), Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1).into())
    };
    v4.or_else(|_| v6()).unwrap_or_else(|_: io::Error| Ipv4Addr::LOCALHOST.into())
}

/// Returns the addresses of the interface that the environment variable names, if it is set.
///
/// # Errors
/// [`Error::Operand`] for an unknown interface, with the names of the interfaces of this machine.
pub(super) fn of_interface() -> Result<Option<Vec<IpAddr>>> {
    match std::env::var_os(INTERFACE) {
        Some(name) => named(&name.to_string_lossy()).map(Some),
        None => Ok(None),
    }
}

fn named(name: &str) -> Result<Vec<IpAddr>> {
    let wrong = |reason: String| Error::operand(INTERFACE, format!("is `{name}`, {reason}"));
    let all =
        interfaces().map_err(|error| wrong(format!("but interfaces are unknown: {error}")))?;
    let own = all.iter().filter(|(interface, _)| interface == name);
    let found: Vec<IpAddr> = own.map(|(_, address)| *address).collect();
    if found.is_empty() {
        let mut names: Vec<&str> = all.iter().map(|(interface, _)| &**interface).collect();
        names.dedup();
        return Err(wrong(format!(
            "but the interfaces of this machine that have an address are {names:?}"
        )));
    }
    Ok(found)
}

/// First fields of `struct ifaddrs` of Linux.
#[repr(C)]
struct Interface {
    next: *const Interface,
    name: *const c_char,
    flags: c_uint,
    address: *const [u8; 2],
}

unsafe extern "C" {
    fn getifaddrs(to: *mut *const Interface) -> c_int;
    fn freeifaddrs(all: *const Interface);
}

/// Names and addresses of all interfaces, without link-local addresses, which need a scope.
fn interfaces() -> io::Result<Vec<(String, IpAddr)>> {
    if !cfg!(target_os = "linux") {
        let reason = format!("{INTERFACE} is read on Linux only");
        return Err(io::Error::new(io::ErrorKind::Unsupported, reason));
    }
    let mut first = std::ptr::null();
    // SAFETY: `first` is valid for writing one pointer.
    if unsafe { getifaddrs(&mut first) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let (mut found, mut at) = (Vec::new(), first);
    while !at.is_null() {
        // SAFETY: `at` is an element of the list of `getifaddrs`, which is freed below.
        let interface = unsafe { &*at };
        // SAFETY: each element has a name that ends in 0.
        let name = unsafe { CStr::from_ptr(interface.name) };
        // SAFETY: the address of this element is null or a `sockaddr`.
        if let Some(address) = unsafe { address(interface.address) } {
            found.push((name.to_string_lossy().into_owned(), address));
        }
        at = interface.next;
    }
    // SAFETY: the list comes from `getifaddrs`, and no reference to it remains.
    unsafe { freeifaddrs(first) };
    Ok(found)
}

/// # Safety
/// `at` is null, or points to a Linux `struct sockaddr` of the length that its family requires.
unsafe fn address(at: *const [u8; 2]) -> Option<IpAddr> {
    const V4: u16 = 2;
    const V6: u16 = 10;
    if at.is_null() {
        return None;
    }
    // SAFETY: every `sockaddr` begins with the family.
    match u16::from_ne_bytes(unsafe { *at }) {
        // SAFETY: `sockaddr_in`: family, port, 4 bytes of the address.
        V4 => Some(unsafe { *at.cast::<[u8; 4]>().add(1) }.into()),
        V6 => {
            // SAFETY: `sockaddr_in6`: family, port, 4 bytes of flow information, 16 bytes of the address.
            let address = Ipv6Addr::from(unsafe { *at.byte_add(8).cast::<[u8; 16]>() });
            (!address.is_unicast_link_local()).then_some(address.into())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interfaces_are_found_by_name() {
        assert!(named("lo").unwrap().contains(&Ipv4Addr::LOCALHOST.into()));
        let error = named("no such").unwrap_err().to_string();
        assert!(error.contains("is `no such`") && error.contains("\"lo\""), "{error}");
    }

    #[test]
    fn host_names_have_addresses_of_both_families() {
        for (host, wanted) in
            [("[::1]", "[::1]:7"), ("::1", "[::1]:7"), ("127.0.0.1", "127.0.0.1:7")]
        {
            assert_eq!(resolve(host, 7).unwrap(), [wanted.parse().unwrap()]);
        }
        assert!(is_loopback("localhost") && is_loopback("::1") && !is_loopback("192.0.2.1"));
        assert!(!is_loopback("no.such.host.invalid"));
    }

    #[test]
    fn one_usable_address_is_enough_to_listen() {
        let foreign = SocketAddr::from(([192, 0, 2, 1], 0));
        let own = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        assert_eq!(listen(&[foreign, own]).unwrap().len(), 1);
        assert!(listen(&[foreign]).is_err());
    }
}
