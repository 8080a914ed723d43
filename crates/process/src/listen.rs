//! Ports, on all addresses of both families.

use std::{
    io,
    net::{Ipv4Addr, SocketAddr},
};

use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::TcpListener;

/// Connections that wait to be accepted: the kernel's own limit is 4096, and of older ones 128.
const BACKLOG: i32 = 1024;

/// Listens on an address; port 0 takes a free one. `[::]` is all addresses of both families whatever the machine's
/// default is, and those of IPv4 where the machine has no IPv6, so that it fits every cluster.
///
/// # Errors
/// When the port is taken or may not be used, or the address is not of this machine.
pub fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let is_any = address.is_ipv6() && address.ip().is_unspecified();
    match bind(address, is_any) {
        Err(error) if is_any && error.kind() != io::ErrorKind::AddrInUse => {
            bind((Ipv4Addr::UNSPECIFIED, address.port()).into(), false)
        }
        bound => bound,
    }
}

fn bind(address: SocketAddr, both_families: bool) -> io::Result<TcpListener> {
    let socket = Socket::new(
        Domain::for_address(address),
        Type::STREAM,
        Some(Protocol::TCP),
    )?;
    if both_families {
        socket.set_only_v6(false)?;
    }
    // connections of an earlier run may still linger
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    TcpListener::from_std(socket.into())
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv6Addr};

    use tokio::net::TcpStream;

    use super::*;

    /// Whether the machine has a loopback address of IPv6.
    fn has_v6() -> bool {
        std::net::TcpListener::bind((Ipv6Addr::LOCALHOST, 0)).is_ok()
    }

    /// Who is connected to an address of this port, by the listener.
    async fn caller(listener: &TcpListener, to: IpAddr) -> io::Result<IpAddr> {
        let port = listener.local_addr()?.port();
        let client = TcpStream::connect((to, port)).await?;
        let (_, peer) = listener.accept().await?;
        assert_eq!(peer.port(), client.local_addr()?.port());
        Ok(peer.ip().to_canonical())
    }

    #[tokio::test]
    async fn any_address_is_of_both_families_or_of_the_one_that_there_is() {
        let listener = listen("[::]:0".parse().unwrap()).unwrap();
        let v4 = IpAddr::V4(Ipv4Addr::LOCALHOST);
        assert_eq!(caller(&listener, v4).await.unwrap(), v4);
        let v6 = IpAddr::V6(Ipv6Addr::LOCALHOST);
        let is_v6 = listener.local_addr().unwrap().is_ipv6();
        assert_eq!(is_v6, has_v6());
        if is_v6 {
            assert_eq!(caller(&listener, v6).await.unwrap(), v6);
        }
        let taken = listen(listener.local_addr().unwrap());
        assert_eq!(taken.unwrap_err().kind(), io::ErrorKind::AddrInUse);
    }

    #[tokio::test]
    async fn a_family_that_is_named_is_the_only_one() {
        let listener = listen("0.0.0.0:0".parse().unwrap()).unwrap();
        let v4 = IpAddr::V4(Ipv4Addr::LOCALHOST);
        assert_eq!(caller(&listener, v4).await.unwrap(), v4);
        let v6 = IpAddr::V6(Ipv6Addr::LOCALHOST);
        caller(&listener, v6).await.unwrap_err();
    }

    #[tokio::test]
    async fn an_address_of_another_machine_is_refused() {
        // of documentation (RFC 5737, RFC 3849)
        for address in ["192.0.2.1:0", "[2001:db8::1]:0"] {
            let error = listen(address.parse().unwrap()).unwrap_err();
            assert_ne!(error.kind(), io::ErrorKind::AddrInUse, "{address}");
        }
    }
}
