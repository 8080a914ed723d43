//! Flags of where to listen: how many servers there are, and where each of them is.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    num::NonZeroU16,
};

use clap::Args;
use process::ConfigError;

/// 1024 servers of one process: about as many as there is memory for in a small virtual machine, and at
/// one listener and a few connections each well below the usual limit of open files.
const MAX_SERVERS: i64 = 1024;

/// Where to listen.
#[derive(Clone, Debug, Args)]
pub(super) struct ListenArgs {
    /// Address to listen on; `::` is every address of IPv6 and IPv4
    #[arg(long, env = "BIND", value_name = "IP", default_value_t = IpAddr::V6(Ipv6Addr::UNSPECIFIED))]
    bind: IpAddr,

    /// Port to listen on, for HTTP/1.1 and for HTTP/2 without TLS; 0 takes a free one and logs it
    #[arg(long, env = "PORT", default_value_t = 8000)]
    port: u16,

    /// Data-parallel ranks of each server, 1 to 8: each has its own engine, metrics and knobs, and its own
    /// port, counted up from --port
    #[arg(long, env = "DATA_PARALLEL_SIZE", value_name = "RANKS", default_value_t = 1,
        value_parser = clap::value_parser!(u16).range(1..=8))]
    data_parallel_size: u16,

    /// Each port takes requests for all ranks of its server, as that of vLLM's own balancer: the header x-data-parallel-rank names
    /// the rank, and without it they take turns
    #[arg(long, env = "DATA_PARALLEL_SHARED_PORTS")]
    data_parallel_shared_ports: bool,

    /// Number that the first of those ranks has among the ranks of all nodes of an engine: ports of KV-cache events and the
    /// ranks in their batches count up from it
    #[arg(
        long,
        env = "DATA_PARALLEL_START_RANK",
        value_name = "RANK",
        default_value_t = 0
    )]
    data_parallel_start_rank: u16,

    /// Run this many independent servers, 1 to 1024, on consecutive addresses from --bind-base up; the
    /// number of each, from 0, is added to its pod name
    #[arg(long, env = "COUNT", value_name = "SERVERS", conflicts_with = "bind",
        value_parser = clap::value_parser!(u16).range(1..=MAX_SERVERS))]
    count: Option<u16>,

    /// Address of the first server of --count
    #[arg(long, env = "BIND_BASE", value_name = "IP", default_value_t = IpAddr::V4(Ipv4Addr::LOCALHOST), requires = "count")]
    bind_base: IpAddr,
}

/// One rank of one server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// Where it listens.
    pub(super) address: SocketAddr,
    /// Number of the server, if there may be several.
    pub(super) server: Option<u16>,
    /// Number of the rank in the server.
    pub(super) rank: u16,
    /// Ranks of the server.
    pub(super) ranks: u16,
    /// The number of the first rank among those of all nodes.
    pub(super) first_rank: u16,
    /// Whether each port accepts requests for all ranks.
    pub(super) has_shared_ports: bool,
}

// === impl ListenArgs ===

impl ListenArgs {
    /// All ranks of all servers.
    ///
    /// # Errors
    /// [`ConfigError`] when there are fewer addresses or ports than needed.
    pub(super) fn places(&self) -> Result<Vec<Place>, ConfigError> {
        let Self {
            bind,
            port,
            data_parallel_size: ranks,
            data_parallel_start_rank: first_rank,
            data_parallel_shared_ports: has_shared_ports,
            count,
            bind_base,
        } = *self;
        let last_rank = NonZeroU16::new(port).map(|port| port.checked_add(ranks - 1));
        if last_rank == Some(None) {
            return Err(ConfigError::new(
                format!("--port {port} with --data-parallel-size {ranks}"),
                "a port for each rank, counted up from --port, below 65536",
                "--port 8000",
            ));
        }
        let base = if count.is_some() { bind_base } else { bind };
        let mut places = Vec::new();
        for number in 0..count.unwrap_or(1) {
            let address = plus(base, number).ok_or_else(|| {
                ConfigError::new(
                    format!("--bind-base {bind_base} with --count {}", number + 1),
                    "an address for each server, counted up from --bind-base",
                    "--bind-base 127.0.0.1",
                )
            })?;
            for rank in 0..ranks {
                // Port 0 is a free one for each rank.
                let port = if port == 0 { 0 } else { port + rank };
                places.push(Place {
                    address: SocketAddr::new(address, port),
                    server: count.map(|_| number),
                    rank,
                    ranks,
                    first_rank,
                    has_shared_ports,
                });
            }
        }
        Ok(places)
    }
}

fn plus(base: IpAddr, number: u16) -> Option<IpAddr> {
    match base {
        IpAddr::V4(base) => base
            .to_bits()
            .checked_add(number.into())
            .map(|bits| IpAddr::V4(bits.into())),
        IpAddr::V6(base) => base
            .to_bits()
            .checked_add(number.into())
            .map(|bits| IpAddr::V6(bits.into())),
    }
}

#[cfg(test)]
mod tests {
    use clap::{Parser, error::ErrorKind};
    use rstest::rstest;

    use super::*;

    #[derive(Debug, Parser)]
    struct Flags {
        #[command(flatten)]
        listen: ListenArgs,
    }

    fn mk_listen(flags: &[&str]) -> ListenArgs {
        let flags = ["sim"].iter().chain(flags);
        let flags = Flags::try_parse_from(flags).expect("flags that parse");
        flags.listen
    }

    #[rstest]
    #[case(&[], &["[::]:8000"])]
    #[case(&["--bind", "0.0.0.0"], &["0.0.0.0:8000"])]
    #[case(&["--bind", "::1", "--data-parallel-size", "3"], &["[::1]:8000", "[::1]:8001", "[::1]:8002"])]
    #[case(&["--count", "1"], &["127.0.0.1:8000"])]
    #[case(&["--count", "2", "--bind-base", "127.0.0.255", "--port", "9"], &["127.0.0.255:9", "127.0.1.0:9"])]
    #[case(&["--count", "2", "--data-parallel-size", "2"],
        &["127.0.0.1:8000", "127.0.0.1:8001", "127.0.0.2:8000", "127.0.0.2:8001"])]
    #[case(&["--port", "0", "--data-parallel-size", "2"], &["[::]:0", "[::]:0"])]
    #[case(&["--port", "65528", "--data-parallel-size", "8"], &[
        "[::]:65528", "[::]:65529", "[::]:65530", "[::]:65531",
        "[::]:65532", "[::]:65533", "[::]:65534", "[::]:65535"])]
    fn every_rank_of_every_server_has_its_address(#[case] flags: &[&str], #[case] wanted: &[&str]) {
        let places = mk_listen(flags).places().expect("valid");
        let addresses: Vec<_> = places
            .iter()
            .map(|place| place.address.to_string())
            .collect();
        assert_eq!(addresses, wanted);
    }

    #[rstest]
    #[case(&["--port", "65535", "--data-parallel-size", "2"], "--port")]
    #[case(&["--count", "3", "--bind-base", "255.255.255.254"], "--bind-base")]
    fn addresses_that_do_not_exist_are_refused(#[case] flags: &[&str], #[case] named: &str) {
        let error = mk_listen(flags).places().expect_err("refused").to_string();
        assert!(error.contains(named), "{error}");
    }

    #[rstest]
    #[case(&["--data-parallel-size", "9"], ErrorKind::ValueValidation, "9 is not in 1..=8")]
    #[case(&["--count", "0"], ErrorKind::ValueValidation, "--count")]
    #[case(&["--count", "2", "--bind", "127.0.0.1"], ErrorKind::ArgumentConflict, "--bind")]
    #[case(&["--bind-base", "127.0.0.2"], ErrorKind::MissingRequiredArgument, "--count")]
    fn flags_out_of_range_or_without_each_other_are_refused(
        #[case] flags: &[&str],
        #[case] kind: ErrorKind,
        #[case] named: &str,
    ) {
        let flags = ["sim"].iter().chain(flags);
        let error = Flags::try_parse_from(flags).expect_err("refused");
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.to_string().contains(named), "{error}");
    }
}
