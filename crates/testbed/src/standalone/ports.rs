//! Where the programs listen: the ports that the files of `config/standalone` name, or free ones.

use std::net::{Ipv4Addr, TcpListener};

/// Where the programs listen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ports {
    /// Envoy's, for clients.
    pub clients: u16,
    /// The model servers', on an address each.
    pub servers: u16,
    /// The endpoint pickers', by number.
    pub pickers: [PickerPorts; MAX_PICKERS],
    /// Envoy's, for its statistics.
    pub admin: u16,
    /// The Metadata-Center's, for endpoint pickers.
    pub center: u16,
    /// The Metadata-Center's, for `/metrics`.
    pub center_admin: u16,
    /// Redis', for the Metadata-Center or as token cache.
    pub redis: u16,
    /// The external stage's.
    pub external: ExternalPorts,
}

/// Where one endpoint picker listens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PickerPorts {
    /// For Envoy.
    pub ext_proc: u16,
    /// For gRPC health.
    pub health: u16,
    /// For `/metrics`.
    pub metrics: u16,
}

/// Where Processor, Router and the model servers' KV events are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExternalPorts {
    /// The Processor's, for endpoint pickers.
    pub processor: u16,
    /// The Processor's, for workers that fetch tokens.
    pub tokens: u16,
    /// The Processor's, for `/metrics`.
    pub processor_admin: u16,
    /// The Router's, for the Processor.
    pub router: u16,
    /// The Router's, for `/metrics` and `/debug`.
    pub router_admin: u16,
    /// The model servers', for subscribers, on an address each.
    pub events: u16,
    /// The model servers', for replays, on an address each.
    pub replay: u16,
}

/// As many as there are ports for.
pub const MAX_PICKERS: usize = 3;

// === impl Ports ===

impl Ports {
    /// Those that the files of `config/standalone` name.
    pub const USUAL: Self = Self {
        clients: 8080,
        servers: 8000,
        pickers: [
            PickerPorts::usual(0),
            PickerPorts::usual(1),
            PickerPorts::usual(2),
        ],
        admin: 19_000,
        center: 8090,
        center_admin: 8091,
        redis: 6379,
        external: ExternalPorts {
            processor: 8092,
            tokens: 8093,
            processor_admin: 8094,
            router: 8095,
            router_admin: 8096,
            events: 5557,
            replay: 5558,
        },
    };

    /// The usual ones, but free ones for those that somebody has.
    ///
    /// # Errors
    /// When the machine has no port left.
    pub fn free() -> std::io::Result<Self> {
        let usual = Self::USUAL;
        let mut held = Vec::new();
        let mut free = |usual: u16| {
            let any = Ipv4Addr::UNSPECIFIED;
            let listener =
                TcpListener::bind((any, usual)).or_else(|_| TcpListener::bind((any, 0)))?;
            let port = listener.local_addr()?.port();
            // until all are found, so that none is found twice
            held.push(listener);
            std::io::Result::Ok(port)
        };
        let mut ports = Self {
            clients: free(usual.clients)?,
            servers: free(usual.servers)?,
            pickers: usual.pickers,
            admin: free(usual.admin)?,
            center: free(usual.center)?,
            center_admin: free(usual.center_admin)?,
            redis: free(usual.redis)?,
            external: usual.external,
        };
        let external = &mut ports.external;
        for port in [
            &mut external.processor,
            &mut external.tokens,
            &mut external.processor_admin,
            &mut external.router,
            &mut external.router_admin,
            &mut external.events,
            &mut external.replay,
        ] {
            *port = free(*port)?;
        }
        for picker in &mut ports.pickers {
            for port in [
                &mut picker.ext_proc,
                &mut picker.health,
                &mut picker.metrics,
            ] {
                *port = free(*port)?;
            }
        }
        Ok(ports)
    }
}

// === impl PickerPorts ===

impl PickerPorts {
    /// Ten apart from those of the next.
    pub const fn usual(nth: u16) -> Self {
        Self {
            ext_proc: 9002 + 10 * nth,
            health: 9003 + 10 * nth,
            metrics: 9090 + 10 * nth,
        }
    }
}
