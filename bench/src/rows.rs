//! The figures that `docs/figures.md` states, and every goal: the one place for both.

use std::time::Duration;

mod goal;

pub use goal::{Bound, Goal, Row, SetBy};
use goal::{design, design_at_least, formerly, info, ours, specified};

/// Each scripted API server answers so late: a network, and a server that works.
pub const LATE: Duration = Duration::from_millis(20);

/// One event, applied in all: 100 ms and the round trip.
const APPLIED: f64 = 100.0 + LATE.as_millis() as f64;
/// One event, all writes sent.
const SENT: f64 = 100.0;
/// CPU of a write, against a bare client in the same run: with 1 and 5 exporters, and with 50.
const FEW: f64 = 1.5;
const FIFTY: f64 = 2.5;
/// The former goal in ms, which the ratios replaced.
const CPU_OF_A_WRITE: f64 = 0.05;
/// In MB, of 100 members with 50 exported pools each.
const MEMORY: f64 = 150.0;
/// Until all imports are compared, in ms.
const COMPARED: f64 = 5000.0;
/// With members in trouble the others are to be as fast as without: to a tenth.
const UNCHANGED: f64 = 1.1;

const P10: &str = "propagation10";
const P100: &str = "propagation100";
const P1000: &str = "propagation1000";
const RESTART: &str = "restart";
const LARGE: &str = "large";
const FAILOVER: &str = "failover";
const REAL: &str = "real";
const EPP: &str = "epp";
const QUALITY: &str = "epp-quality";
const METADATA: &str = "metadata";
/// In µs: 150,000 and 72,000 operations a second, ten times what the Go service reaches on such a machine.
const MIXED_32: f64 = 1e6 / 150_000.0;
const MIXED_1000: f64 = 1e6 / 72_000.0;
/// In ms, until a replica knows what another one acknowledged.
const KNOWN: f64 = 20.0;
/// A million operations a second.
const BATCHED: f64 = 1.0;
/// In µs, a pick over HTTP.
const PICKED_P50: f64 = 150.0;
const PICKED_P99: f64 = 1000.0;
/// In µs, what the LLM filter adds to a decision: by its own state, and by asking a Metadata-Center. The first is less than
/// what rounds differ by, so that the worst of them has to reach it.
const LLM_ADDED: f64 = 20.0;
const LLM_ADDED_REMOTE: f64 = 1000.0;
const ROUTER: &str = "router";
const DYNAMO: &str = "dynamo";
/// In µs: a prompt routed, a short chat made ids.
const MILLISECOND: f64 = 1000.0;
const GATEWAY: &str = "gateway";
/// In ms: of the processor, of an event; until Envoy has it; of a build.
const POD_EVENT: f64 = 2.0;
const ROUTE_EVENT: f64 = 20.0;
const POD_HAD: f64 = 20.0;
const ROUTE_HAD: f64 = 50.0;
const BUILD: f64 = 20.0;
/// In MB, and in bytes on the wire for one change.
const GATEWAY_MEMORY: f64 = 200.0;
const ONE_CHANGE: f64 = 1000.0;
const DATAPATH: &str = "datapath";
/// Of the requests that the same Envoy answers each second without EPP.
const BY_POOL: f64 = 0.45;
const BY_IMPORT: f64 = 0.35;
/// Measured with `epp` where there is another EPP, or where there are cores enough; skipped otherwise.
pub const PEER: &str = "epp-peer";
/// CPU of a request, against the floor in the same run: of 1 KB, and of more.
const AS_FLOOR: f64 = 1.0;
const NEAR_FLOOR: f64 = 1.1;
/// Time of a pick, against the same.
const PICK_P50: f64 = 1.2;
const PICK_P99: f64 = 1.5;
/// Of the body bytes in flight.
const HELD: f64 = 3.0;
/// In µs, of a pick from outside with nothing else to do.
const DECIDED_P50: f64 = 100.0;
const DECIDED_P99: f64 = 500.0;
/// In µs: 512 blocks at 100 endpoints, and a page of 30 KB.
const MATCHED: f64 = 40.0;
const PAGE_READ: f64 = 20.0;
/// Eight threads match at least five times as much as one.
const EIGHT_THREADS: f64 = 1.0 / 5.0;
/// In % of a core, 100 endpoints each 50 ms; and in ms of CPU, one scrape.
const SCRAPING: f64 = 12.0;
const SCRAPE: f64 = 0.05;
/// Two passes over a body would be 2.
const ONE_PASS: f64 = 1.5;
/// In % of all ids: a reuse of 0.52.
const COMPUTED: f64 = 48.0;
/// Against one worker after the other, where all prompts have one long prefix.
const HOT: f64 = 1.4;
/// Of chance's sigma, where no two prompts have anything in common.
const EVEN: f64 = 4.5;
/// In ns, an id whose block is named: 2 GB of ids a second. In µs, an operation of the index on two threads: 10 million a
/// second. In bytes, a worker's block in the index.
const NAMED: f64 = 2.0;
const INDEXED: f64 = 0.1;
const PAIR: f64 = 128.0;
/// In µs, p99.
const DECIDED: f64 = 10.0;
/// In parts of which none is cached, against the bare tokenizer; where nine of ten turns are cached, against none.
const COLD: f64 = 1.11;
const SEEN: f64 = 0.2;
/// Nothing is added while workers and adapters come and go, but what chance does.
const FLAT: f64 = 1.05;
/// As good as the other or better.
const AS_GOOD: f64 = 1.0;

/// In the order of the document.
#[rustfmt::skip]
pub const ROWS: &[Row] = &[
    info(P10, "10 members, 1 exporters, TLS: event to all applied, p50"),
    info(P10, "10 members, 1 exporters, TLS: event to all applied, p99"),
    info(P10, "10 members, 1 exporters, TLS: event to all sent, p99"),
    ours(P10, "10 members, 1 exporters, TLS: controller's CPU per write / the bare client's", FEW),
    info(P10, "10 members, 1 exporters, plain: event to all applied, p50"),
    info(P10, "10 members, 1 exporters, plain: event to all applied, p99"),
    info(P10, "10 members, 1 exporters, plain: event to all sent, p99"),

    info(P100, "100 members, 1 exporters, TLS: event to all applied, p50"),
    design(P100, "100 members, 1 exporters, TLS: event to all applied, p99", APPLIED),
    ours(P100, "100 members, 1 exporters, TLS: event to all sent, p99", SENT),
    info(P100, "100 members, 1 exporters, plain: event to all applied, p50"),
    design(P100, "100 members, 1 exporters, plain: event to all applied, p99", APPLIED),
    ours(P100, "100 members, 1 exporters, plain: event to all sent, p99", SENT),
    info(P100, "100 members, 5 exporters, TLS: event to all applied, p50"),
    design(P100, "100 members, 5 exporters, TLS: event to all applied, p99", APPLIED),
    ours(P100, "100 members, 5 exporters, TLS: event to all sent, p99", SENT),
    info(P100, "100 members, 50 exporters, TLS: event to all applied, p50"),
    design(P100, "100 members, 50 exporters, TLS: event to all applied, p99", APPLIED),
    ours(P100, "100 members, 50 exporters, TLS: event to all sent, p99", SENT),
    formerly(P100, "100 members, 1 exporters, TLS: controller CPU per write, idle taken off", CPU_OF_A_WRITE),
    info(P100, "100 members, 1 exporters, TLS, bare client: CPU per write, idle taken off"),
    design(P100, "100 members, 1 exporters, TLS: controller's CPU per write / the bare client's", FEW),
    formerly(P100, "100 members, 5 exporters, TLS: controller CPU per write, idle taken off", CPU_OF_A_WRITE),
    info(P100, "100 members, 5 exporters, TLS, bare client: CPU per write, idle taken off"),
    design(P100, "100 members, 5 exporters, TLS: controller's CPU per write / the bare client's", FEW),
    formerly(P100, "100 members, 50 exporters, TLS: controller CPU per write, idle taken off", CPU_OF_A_WRITE),
    info(P100, "100 members, 50 exporters, TLS, bare client: CPU per write, idle taken off"),
    design(P100, "100 members, 50 exporters, TLS: controller's CPU per write / the bare client's", FIFTY),
    info(P100, "100 members, 1 exporters, TLS: controller idle"),
    info(P100, "100 members, 1 exporters, TLS: RSS"),
    info(P100, "100 members, 5 exporters, TLS, all others: event to applied, all is well, p50"),
    info(P100, "100 members, 5 exporters, TLS, all others: event to applied, all is well, p99"),
    info(P100, "100 members, 5 exporters, TLS, all others: event to applied, one hung, one deaf, one slow, p50"),
    info(P100, "100 members, 5 exporters, TLS, all others: event to applied, one hung, one deaf, one slow, p99"),
    specified(P100, "100 members, 5 exporters, TLS, all others: p99 with members in trouble / without", UNCHANGED),

    info(P1000, "1000 members, 5 exporters, TLS: event to all applied, p50"),
    info(P1000, "1000 members, 5 exporters, TLS: event to all applied, p99"),
    design(P1000, "1000 members, 5 exporters, TLS: event to all sent, p99", SENT),
    info(P1000, "1000 members, 5 exporters, TLS: event to all sent, writes held 300ms, p50"),
    ours(P1000, "1000 members, 5 exporters, TLS: event to all sent, writes held 300ms, p99", SENT),
    info(P1000, "1000 members, 5 exporters, plain: event to all applied, p50"),
    info(P1000, "1000 members, 5 exporters, plain: event to all applied, p99"),
    design(P1000, "1000 members, 5 exporters, plain: event to all sent, p99", SENT),
    info(P1000, "1000 members, 5 exporters, plain: event to all sent, writes held 300ms, p50"),
    ours(P1000, "1000 members, 5 exporters, plain: event to all sent, writes held 300ms, p99", SENT),
    formerly(P1000, "1000 members, 5 exporters, TLS: controller CPU per write, idle taken off", CPU_OF_A_WRITE),
    info(P1000, "1000 members, 5 exporters, TLS, bare client: CPU per write, idle taken off"),
    design(P1000, "1000 members, 5 exporters, TLS: controller's CPU per write / the bare client's", FEW),
    info(P1000, "1000 members, 5 exporters, TLS: controller idle"),
    info(P1000, "1000 members, 5 exporters, TLS: RSS"),

    info(RESTART, "100 members, 50 pools x 5 exporters: all 5000 imports from nothing"),
    ours(RESTART, "100 members, 50 pools x 5 exporters: RSS", MEMORY),
    info(RESTART, "100 members, 50 pools x 5 exporters: most RSS ever"),
    ours(RESTART, "100 members, 50 pools x 5 exporters: RSS after a restart", MEMORY),
    info(RESTART, "100 members, 50 pools x 5 exporters: a view of the page, CPU"),
    specified(RESTART, "100 members, 50 pools x 5 exporters: restart until all is listed and compared", COMPARED),
    design(RESTART, "100 members, 50 pools x 5 exporters: restart, writes", 0.0),
    design(RESTART, "100 members, 50 pools x 5 exporters: restart, imports lost or short", 0.0),
    design(RESTART, "100 members, 50 pools x 5 exporters: restart with 10 members down, withdrawn entries", 0.0),
    design(RESTART, "100 members, 50 pools x 5 exporters: the same, writes that changed nothing", 0.0),
    info(RESTART, "100 members, 50 pools x 5 exporters: the same, writes (Reachable)"),
    design(RESTART, "100 members, 50 pools x 5 exporters: the same, withdrawals counted", 0.0),

    info(LARGE, "100 members x 50 exported pools: all 100000 imports from nothing"),
    design(LARGE, "100 members x 50 exported pools: RSS", MEMORY),
    design(LARGE, "100 members x 50 exported pools: most RSS ever", MEMORY),
    design(LARGE, "100 members x 50 exported pools: RSS after a restart", MEMORY),
    info(LARGE, "100 members x 50 exported pools: a view of the page, CPU"),
    info(LARGE, "100 members x 50 exported pools: restart until all is listed and compared"),
    design(LARGE, "100 members x 50 exported pools: restart, writes", 0.0),
    design(LARGE, "100 members x 50 exported pools: restart, imports lost or short", 0.0),

    specified(FAILOVER, "failover after a crash: event to all applied", 17.0),
    specified(FAILOVER, "failover after SIGTERM: event to all applied", 3.0),

    info(REAL, "3 real clusters: change to both imports seen, p50"),
    ours(REAL, "3 real clusters: change to both imports seen, p99", 100.0),

    info(EPP, "a pick from 10 endpoints"),
    info(EPP, "a pick from 100 endpoints"),
    info(EPP, "a pick from 1000 endpoints"),
    specified(EPP, "prefix index, 512 blocks x 100 endpoints, all have all: a match", MATCHED),
    info(EPP, "prefix index, 512 blocks x 100 endpoints, all have all: a match / a naive index's"),
    specified(EPP, "prefix index, 512 blocks x 100 endpoints, each has more than the one before: a match", MATCHED),
    info(EPP, "prefix index, 512 blocks x 100 endpoints, each has more than the one before: a match / a naive index's"),
    info(EPP, "prefix index, matches a second: of 2 threads / of 1"),
    specified(PEER, "prefix index, matches a second: of 1 thread / of 8", EIGHT_THREADS),
    info(EPP, "a body of 1 KB: read"),
    info(EPP, "a body of 1 KB: hashes of its blocks"),
    info(EPP, "a body of 10 KB: read"),
    info(EPP, "a body of 10 KB: hashes of its blocks"),
    info(EPP, "a body of 100 KB: read"),
    info(EPP, "a body of 100 KB: hashes of its blocks"),
    info(EPP, "a body of 400 KB: read"),
    info(EPP, "a body of 400 KB: hashes of its blocks"),
    info(EPP, "a body of 4 MB: read"),
    info(EPP, "a body of 4 MB: hashes of its first 2048 blocks (512 KB)"),
    ours(EPP, "a body of 4 MB: read / one pass of a JSON reader that keeps nothing", ONE_PASS),
    specified(EPP, "a metrics page of 30 KB: read", PAGE_READ),

    info(EPP, "EPP, 64 bodies of 400 KB at once: most RSS over idle"),
    design(EPP, "EPP, 64 bodies of 400 KB at once: most RSS over idle / bytes of the bodies", HELD),
    info(EPP, "EPP, 8 bodies of 4 MB at once: most RSS over idle"),
    design(EPP, "EPP, 8 bodies of 4 MB at once: most RSS over idle / bytes of the bodies", HELD),
    info(EPP, "EPP, 10 endpoints scraped each 50 ms: idle"),
    design(EPP, "EPP, 100 endpoints scraped each 50 ms: idle", SCRAPING),
    info(EPP, "EPP, 100 endpoints scraped each 50 ms: a metrics page"),
    info(EPP, "EPP, 100 endpoints scraped each 50 ms: scrapes a second of each"),
    specified(EPP, "EPP, 100 endpoints scraped each 50 ms: CPU of a scrape", SCRAPE),

    info(EPP, "EPP, 1 KB: CPU per request, idle taken off"),
    info(EPP, "EPP, 1 KB, floor: CPU per request"),
    design(EPP, "EPP, 1 KB: CPU per request / the floor's", AS_FLOOR),
    info(EPP, "EPP, 1 KB, 8 in flight: last byte to pick, p50"),
    info(EPP, "EPP, 1 KB, 8 in flight, floor: last byte to pick, p50"),
    design(EPP, "EPP, 1 KB, 8 in flight: last byte to pick, p50 / the floor's", PICK_P50),
    info(EPP, "EPP, 1 KB, 8 in flight: last byte to pick, p99"),
    info(EPP, "EPP, 1 KB, 8 in flight, floor: last byte to pick, p99"),
    design(EPP, "EPP, 1 KB, 8 in flight: last byte to pick, p99 / the floor's", PICK_P99),
    info(EPP, "EPP, 1 KB, 8 in flight: last byte to pick, p99.9"),
    info(EPP, "EPP, 1 KB, 8 in flight, floor: last byte to pick, p99.9"),
    design(EPP, "EPP, 1 KB, one at a time: last byte to pick, p50", DECIDED_P50),
    info(EPP, "EPP, 1 KB, one at a time, floor: last byte to pick, p50"),
    info(EPP, "EPP, 1 KB, one at a time: last byte to pick, p50 / the floor's"),
    design(EPP, "EPP, 1 KB, one at a time: last byte to pick, p99", DECIDED_P99),
    info(EPP, "EPP, 1 KB, one at a time, floor: last byte to pick, p99"),
    info(EPP, "EPP, 1 KB, one at a time: last byte to pick, p99 / the floor's"),
    info(EPP, "EPP, 1 KB, one at a time: last byte to pick, p99.9"),
    info(EPP, "EPP, 1 KB, one at a time, floor: last byte to pick, p99.9"),
    info(EPP, "EPP, 1 KB, 100 endpoints: CPU per request, idle taken off"),
    info(EPP, "EPP, 1 KB, 100 endpoints, floor: CPU per request"),
    ours(EPP, "EPP, 1 KB, 100 endpoints: CPU per request / the floor's", NEAR_FLOOR),
    info(EPP, "EPP, 10 KB: CPU per request, idle taken off"),
    info(EPP, "EPP, 10 KB, floor: CPU per request"),
    ours(EPP, "EPP, 10 KB: CPU per request / the floor's", NEAR_FLOOR),
    info(EPP, "EPP, 100 KB: CPU per request, idle taken off"),
    info(EPP, "EPP, 100 KB, floor: CPU per request"),
    design(EPP, "EPP, 100 KB: CPU per request / the floor's", NEAR_FLOOR),
    info(EPP, "EPP, 100 KB in 32 KiB: CPU per request, idle taken off"),
    info(EPP, "EPP, 100 KB in 32 KiB, floor: CPU per request"),
    ours(EPP, "EPP, 100 KB in 32 KiB: CPU per request / the floor's", NEAR_FLOOR),
    info(EPP, "EPP, 100 KB, no two alike: CPU per request, idle taken off"),
    info(EPP, "EPP, 100 KB, no two alike, floor: CPU per request"),
    ours(EPP, "EPP, 100 KB, no two alike: CPU per request / the floor's", NEAR_FLOOR),
    info(EPP, "EPP, 100 KB, 100 endpoints: CPU per request, idle taken off"),
    info(EPP, "EPP, 100 KB, 100 endpoints, floor: CPU per request"),
    ours(EPP, "EPP, 100 KB, 100 endpoints: CPU per request / the floor's", NEAR_FLOOR),
    info(EPP, "EPP, 400 KB: CPU per request, idle taken off"),
    info(EPP, "EPP, 400 KB, floor: CPU per request"),
    design(EPP, "EPP, 400 KB: CPU per request / the floor's", NEAR_FLOOR),
    info(EPP, "EPP, 400 KB in 32 KiB: CPU per request, idle taken off"),
    info(EPP, "EPP, 400 KB in 32 KiB, floor: CPU per request"),
    ours(EPP, "EPP, 400 KB in 32 KiB: CPU per request / the floor's", NEAR_FLOOR),
    info(EPP, "EPP, 4 MB: CPU per request, idle taken off"),
    info(EPP, "EPP, 4 MB, floor: CPU per request"),
    ours(EPP, "EPP, 4 MB: CPU per request / the floor's", NEAR_FLOOR),
    info(EPP, "EPP, 4 MB in 32 KiB: CPU per request, idle taken off"),
    info(EPP, "EPP, 4 MB in 32 KiB, floor: CPU per request"),
    ours(EPP, "EPP, 4 MB in 32 KiB: CPU per request / the floor's", NEAR_FLOOR),
    info(EPP, "EPP, 1 KB, 500 requests/s: due to pick, p50"),
    info(EPP, "EPP, 1 KB, 500 requests/s, floor: due to pick, p50"),
    info(EPP, "EPP, 1 KB, 500 requests/s: due to pick, p50 / the floor's"),
    info(EPP, "EPP, 1 KB, 500 requests/s: due to pick, p99"),
    info(EPP, "EPP, 1 KB, 500 requests/s, floor: due to pick, p99"),
    info(EPP, "EPP, 1 KB, 500 requests/s: due to pick, p99 / the floor's"),
    info(EPP, "EPP, 1 KB, 500 requests/s: due to pick, p99.9"),
    info(EPP, "EPP, 1 KB, 500 requests/s, floor: due to pick, p99.9"),
    info(EPP, "EPP, 100 KB, 200 requests/s: due to pick, p50"),
    info(EPP, "EPP, 100 KB, 200 requests/s, floor: due to pick, p50"),
    info(EPP, "EPP, 100 KB, 200 requests/s: due to pick, p50 / the floor's"),
    info(EPP, "EPP, 100 KB, 200 requests/s: due to pick, p99"),
    info(EPP, "EPP, 100 KB, 200 requests/s, floor: due to pick, p99"),
    info(EPP, "EPP, 100 KB, 200 requests/s: due to pick, p99 / the floor's"),
    info(EPP, "EPP, 100 KB, 200 requests/s: due to pick, p99.9"),
    info(EPP, "EPP, 100 KB, 200 requests/s, floor: due to pick, p99.9"),
    info(EPP, "EPP, 10 endpoints: most RSS of all loads"),
    info(EPP, "EPP, 100 endpoints: most RSS of all loads"),
    ours(EPP, "EPP: wrong answers", 0.0),

    specified(PEER, "EPP, 1 KB: CPU per request / the peer's", 0.25),
    info(PEER, "EPP, 1 KB: CPU per request / the peer's by its defaults"),
    specified(PEER, "EPP, 100 KB: CPU per request / the peer's", 0.12),
    info(PEER, "EPP, 100 KB: CPU per request / the peer's by its defaults"),
    specified(PEER, "EPP, 400 KB: CPU per request / the peer's", 0.08),
    info(PEER, "EPP, 400 KB: CPU per request / the peer's by its defaults"),
    info(PEER, "EPP, 1 KB, 8 in flight: last byte to pick, p50 / the peer's"),
    info(PEER, "EPP, 1 KB, 8 in flight: last byte to pick, p50 / the peer's by its defaults"),
    info(PEER, "EPP, 1 KB, 8 in flight: last byte to pick, p99 / the peer's"),
    info(PEER, "EPP, 1 KB, 8 in flight: last byte to pick, p99 / the peer's by its defaults"),
    info(PEER, "EPP, 10 endpoints scraped each 50 ms, peer: idle"),
    info(PEER, "EPP, peer: wrong answers"),

    info(QUALITY, "EPP quality, 50 % load, default: TTFT p50"),
    info(QUALITY, "EPP quality, 50 % load, default: TTFT p99"),
    info(QUALITY, "EPP quality, 50 % load, default: cached"),
    info(QUALITY, "EPP quality, 50 % load, default: requests, most / mean"),
    info(QUALITY, "EPP quality, 50 % load: TTFT p50, default / random"),
    info(QUALITY, "EPP quality, 50 % load: TTFT p99, default / random"),
    ours(QUALITY, "EPP quality, 50 % load: TTFT p50, default / round robin", AS_GOOD),
    ours(QUALITY, "EPP quality, 50 % load: TTFT p99, default / round robin", AS_GOOD),
    ours(QUALITY, "EPP quality, 50 % load: TTFT p50, default / least queue", AS_GOOD),
    ours(QUALITY, "EPP quality, 50 % load: TTFT p99, default / least queue", AS_GOOD),
    ours(QUALITY, "EPP quality, 50 % load: TTFT p50, default / least requests", AS_GOOD),
    ours(QUALITY, "EPP quality, 50 % load: TTFT p99, default / least requests", AS_GOOD),
    ours(QUALITY, "EPP quality, 50 % load: TTFT p50, default / reference's scoring", AS_GOOD),
    ours(QUALITY, "EPP quality, 50 % load: TTFT p99, default / reference's scoring", AS_GOOD),
    info(QUALITY, "EPP quality, 80 % load, default: TTFT p50"),
    info(QUALITY, "EPP quality, 80 % load, default: TTFT p99"),
    info(QUALITY, "EPP quality, 80 % load, default: cached"),
    info(QUALITY, "EPP quality, 80 % load, default: requests, most / mean"),
    info(QUALITY, "EPP quality, 80 % load: TTFT p50, default / random"),
    info(QUALITY, "EPP quality, 80 % load: TTFT p99, default / random"),
    ours(QUALITY, "EPP quality, 80 % load: TTFT p50, default / round robin", AS_GOOD),
    ours(QUALITY, "EPP quality, 80 % load: TTFT p99, default / round robin", AS_GOOD),
    ours(QUALITY, "EPP quality, 80 % load: TTFT p50, default / least queue", AS_GOOD),
    ours(QUALITY, "EPP quality, 80 % load: TTFT p99, default / least queue", AS_GOOD),
    ours(QUALITY, "EPP quality, 80 % load: TTFT p50, default / least requests", AS_GOOD),
    ours(QUALITY, "EPP quality, 80 % load: TTFT p99, default / least requests", AS_GOOD),
    ours(QUALITY, "EPP quality, 80 % load: TTFT p50, default / reference's scoring", AS_GOOD),
    ours(QUALITY, "EPP quality, 80 % load: TTFT p99, default / reference's scoring", AS_GOOD),
    info(QUALITY, "EPP quality, 95 % load, default: TTFT p50"),
    info(QUALITY, "EPP quality, 95 % load, default: TTFT p99"),
    info(QUALITY, "EPP quality, 95 % load, default: cached"),
    info(QUALITY, "EPP quality, 95 % load, default: requests, most / mean"),
    info(QUALITY, "EPP quality, 95 % load: TTFT p50, default / random"),
    info(QUALITY, "EPP quality, 95 % load: TTFT p99, default / random"),
    ours(QUALITY, "EPP quality, 95 % load: TTFT p50, default / round robin", AS_GOOD),
    ours(QUALITY, "EPP quality, 95 % load: TTFT p99, default / round robin", AS_GOOD),
    ours(QUALITY, "EPP quality, 95 % load: TTFT p50, default / least queue", AS_GOOD),
    ours(QUALITY, "EPP quality, 95 % load: TTFT p99, default / least queue", AS_GOOD),
    ours(QUALITY, "EPP quality, 95 % load: TTFT p50, default / least requests", AS_GOOD),
    ours(QUALITY, "EPP quality, 95 % load: TTFT p99, default / least requests", AS_GOOD),
    ours(QUALITY, "EPP quality, 95 % load: TTFT p50, default / reference's scoring", AS_GOOD),
    ours(QUALITY, "EPP quality, 95 % load: TTFT p99, default / reference's scoring", AS_GOOD),
    ours(QUALITY, "EPP quality, scorers: TTFT p50, default / token load alone", AS_GOOD),
    ours(QUALITY, "EPP quality, scorers: TTFT p99, default / token load alone", AS_GOOD),
    info(QUALITY, "EPP quality, mixed requests, 80 % load, gateways 80 ms away: TTFT p99, way measured"),
    info(QUALITY, "EPP quality, mixed requests, 80 % load, gateways 80 ms away: TTFT p99, way not counted"),
    ours(QUALITY, "EPP quality, mixed requests, 80 % load, gateways 80 ms away: TTFT p99, measured / not counted", AS_GOOD),
    info(QUALITY, "EPP quality, mixed requests, 80 % load, gateways 80 ms away: picks in 100 ms, most / mean, way measured"),
    info(QUALITY, "EPP quality, mixed requests, 80 % load, gateways 80 ms away: picks in 100 ms, most / mean, way not counted"),
    ours(QUALITY, "EPP quality, mixed requests, 80 % load, gateways 80 ms away: picks in 100 ms, most / mean, measured / not counted", AS_GOOD),
    info(QUALITY, "EPP quality, mixed requests, 95 % load, gateways 80 ms away: TTFT p99, way measured"),
    info(QUALITY, "EPP quality, mixed requests, 95 % load, gateways 80 ms away: TTFT p99, way not counted"),
    ours(QUALITY, "EPP quality, mixed requests, 95 % load, gateways 80 ms away: TTFT p99, measured / not counted", AS_GOOD),
    info(QUALITY, "EPP quality, mixed requests, 95 % load, gateways 80 ms away: picks in 100 ms, most / mean, way measured"),
    info(QUALITY, "EPP quality, mixed requests, 95 % load, gateways 80 ms away: picks in 100 ms, most / mean, way not counted"),
    ours(QUALITY, "EPP quality, mixed requests, 95 % load, gateways 80 ms away: picks in 100 ms, most / mean, measured / not counted", AS_GOOD),
    info(QUALITY, "EPP quality, short requests, 80 % load, gateways 80 ms away: TTFT p99, way measured"),
    info(QUALITY, "EPP quality, short requests, 80 % load, gateways 80 ms away: TTFT p99, way not counted"),
    ours(QUALITY, "EPP quality, short requests, 80 % load, gateways 80 ms away: TTFT p99, measured / not counted", AS_GOOD),
    info(QUALITY, "EPP quality, short requests, 80 % load, gateways 80 ms away: picks in 100 ms, most / mean, way measured"),
    info(QUALITY, "EPP quality, short requests, 80 % load, gateways 80 ms away: picks in 100 ms, most / mean, way not counted"),
    ours(QUALITY, "EPP quality, short requests, 80 % load, gateways 80 ms away: picks in 100 ms, most / mean, measured / not counted", AS_GOOD),
    info(QUALITY, "EPP quality, short requests, 95 % load, gateways 80 ms away: TTFT p99, way measured"),
    info(QUALITY, "EPP quality, short requests, 95 % load, gateways 80 ms away: TTFT p99, way not counted"),
    ours(QUALITY, "EPP quality, short requests, 95 % load, gateways 80 ms away: TTFT p99, measured / not counted", AS_GOOD),
    info(QUALITY, "EPP quality, short requests, 95 % load, gateways 80 ms away: picks in 100 ms, most / mean, way measured"),
    info(QUALITY, "EPP quality, short requests, 95 % load, gateways 80 ms away: picks in 100 ms, most / mean, way not counted"),
    ours(QUALITY, "EPP quality, short requests, 95 % load, gateways 80 ms away: picks in 100 ms, most / mean, measured / not counted", AS_GOOD),

    info(METADATA, "Metadata-Center, mix, 32 engines, 1 connection: time per operation"),
    info(METADATA, "Metadata-Center, mix, 32 engines, 1 connection: CPU per operation"),
    info(METADATA, "Metadata-Center, mix, 32 engines, 1 connection: p50"),
    info(METADATA, "Metadata-Center, mix, 32 engines, 1 connection: p99"),
    specified(METADATA, "Metadata-Center, mix, 32 engines, 32 connections: time per operation", MIXED_32),
    info(METADATA, "Metadata-Center, mix, 32 engines, 32 connections: CPU per operation"),
    info(METADATA, "Metadata-Center, mix, 32 engines, 32 connections: p50"),
    info(METADATA, "Metadata-Center, mix, 32 engines, 32 connections: p99"),
    info(METADATA, "Metadata-Center, mix, 1000 engines, 1 connection: time per operation"),
    info(METADATA, "Metadata-Center, mix, 1000 engines, 1 connection: CPU per operation"),
    info(METADATA, "Metadata-Center, mix, 1000 engines, 1 connection: p50"),
    info(METADATA, "Metadata-Center, mix, 1000 engines, 1 connection: p99"),
    specified(METADATA, "Metadata-Center, mix, 1000 engines, 32 connections: time per operation", MIXED_1000),
    info(METADATA, "Metadata-Center, mix, 1000 engines, 32 connections: CPU per operation"),
    info(METADATA, "Metadata-Center, mix, 1000 engines, 32 connections: p50"),
    info(METADATA, "Metadata-Center, mix, 1000 engines, 32 connections: p99"),
    specified(METADATA, "Metadata-Center, batches of 64: time per operation", BATCHED),
    info(METADATA, "Metadata-Center, batches of 64: CPU per operation"),
    info(METADATA, "Metadata-Center, batches of 64: p50"),
    info(METADATA, "Metadata-Center, batches of 64: p99"),
    info(METADATA, "Metadata-Center, picks of 100 candidates, 40 chunks, 1000/s: CPU per operation"),
    specified(METADATA, "Metadata-Center, picks of 100 candidates, 40 chunks, 1000/s: p50", PICKED_P50),
    specified(METADATA, "Metadata-Center, picks of 100 candidates, 40 chunks, 1000/s: p99", PICKED_P99),
    info(METADATA, "Metadata-Center, picks of 100 candidates, 40 chunks, as fast as they go: time per operation"),
    info(METADATA, "Metadata-Center, picks of 100 candidates, 40 chunks, as fast as they go: CPU per operation"),
    info(METADATA, "Metadata-Center, picks of 100 candidates, 40 chunks, as fast as they go: p50"),
    info(METADATA, "Metadata-Center, picks of 100 candidates, 40 chunks, as fast as they go: p99"),
    specified(METADATA, "Metadata-Center, 2 replicas over Redis: charges that a first look does not show", 0.0),
    info(METADATA, "Metadata-Center, 2 replicas over Redis: a saved prompt until the other knows it, p50"),
    specified(METADATA, "Metadata-Center, 2 replicas over Redis: a saved prompt until the other knows it, p99", KNOWN),

    info(METADATA, "LLM filter, 1 KB, one at a time: without it, p50"),
    info(METADATA, "LLM filter, 1 KB, one at a time: p50"),
    info(METADATA, "LLM filter, 1 KB, one at a time: with a Metadata-Center, p50"),
    info(METADATA, "LLM filter, 1 KB, one at a time: added, p50"),
    specified(METADATA, "LLM filter, 1 KB, one at a time: added, p50, in the worst round", LLM_ADDED),
    specified(METADATA, "LLM filter, 1 KB, one at a time: added with a Metadata-Center, p50", LLM_ADDED_REMOTE),
    info(METADATA, "LLM filter, 100 KB, one at a time: without it, p50"),
    info(METADATA, "LLM filter, 100 KB, one at a time: p50"),
    info(METADATA, "LLM filter, 100 KB, one at a time: with a Metadata-Center, p50"),
    info(METADATA, "LLM filter, 100 KB, one at a time: added, p50"),
    info(METADATA, "LLM filter, 100 KB, one at a time: added, p50, in the worst round"),
    info(METADATA, "LLM filter, 100 KB, one at a time: added with a Metadata-Center, p50"),

    info(ROUTER, "router, tool-use, 64 under way, round robin: ids computed"),
    info(ROUTER, "router, tool-use, 64 under way, round robin: TTFT, mean"),
    info(ROUTER, "router, tool-use, 64 under way, round robin: TPOT, mean"),
    info(ROUTER, "router, tool-use, 64 under way, first-block affinity: ids computed"),
    info(ROUTER, "router, tool-use, 64 under way, first-block affinity: TTFT, mean"),
    info(ROUTER, "router, tool-use, 64 under way, first-block affinity: TPOT, mean"),
    info(ROUTER, "router, tool-use, 64 under way, reference: ids computed"),
    info(ROUTER, "router, tool-use, 64 under way, reference: TTFT, mean"),
    info(ROUTER, "router, tool-use, 64 under way, reference: TPOT, mean"),
    specified(ROUTER, "router, tool-use, 64 under way, isthmus: ids computed", COMPUTED),
    info(ROUTER, "router, tool-use, 64 under way, isthmus: TTFT, mean"),
    info(ROUTER, "router, tool-use, 64 under way, isthmus: TPOT, mean"),
    specified(ROUTER, "router, tool-use, 64 under way: ids computed, isthmus / round robin", AS_GOOD),
    specified(ROUTER, "router, tool-use, 64 under way: TTFT, mean, isthmus / round robin", AS_GOOD),
    ours(ROUTER, "router, tool-use, 64 under way: ids computed, isthmus / least requests", AS_GOOD),
    ours(ROUTER, "router, tool-use, 64 under way: TTFT, mean, isthmus / least requests", AS_GOOD),
    ours(ROUTER, "router, tool-use, 64 under way: ids computed, isthmus / first-block affinity", AS_GOOD),
    ours(ROUTER, "router, tool-use, 64 under way: TTFT, mean, isthmus / first-block affinity", AS_GOOD),
    ours(ROUTER, "router, tool-use, 64 under way: ids computed, isthmus / approximate", AS_GOOD),
    ours(ROUTER, "router, tool-use, 64 under way: TTFT, mean, isthmus / approximate", AS_GOOD),
    specified(ROUTER, "router, tool-use, 64 under way: ids computed, isthmus / reference", AS_GOOD),
    specified(ROUTER, "router, tool-use, 64 under way: TTFT, mean, isthmus / reference", AS_GOOD),
    info(ROUTER, "router, tool-use, 256 under way, round robin: ids computed"),
    info(ROUTER, "router, tool-use, 256 under way, round robin: TTFT, mean"),
    info(ROUTER, "router, tool-use, 256 under way, round robin: TPOT, mean"),
    info(ROUTER, "router, tool-use, 256 under way, first-block affinity: ids computed"),
    info(ROUTER, "router, tool-use, 256 under way, first-block affinity: TTFT, mean"),
    info(ROUTER, "router, tool-use, 256 under way, first-block affinity: TPOT, mean"),
    info(ROUTER, "router, tool-use, 256 under way, reference: ids computed"),
    info(ROUTER, "router, tool-use, 256 under way, reference: TTFT, mean"),
    info(ROUTER, "router, tool-use, 256 under way, reference: TPOT, mean"),
    info(ROUTER, "router, tool-use, 256 under way, isthmus: ids computed"),
    info(ROUTER, "router, tool-use, 256 under way, isthmus: TTFT, mean"),
    info(ROUTER, "router, tool-use, 256 under way, isthmus: TPOT, mean"),
    specified(ROUTER, "router, tool-use, 256 under way: ids computed, isthmus / round robin", AS_GOOD),
    specified(ROUTER, "router, tool-use, 256 under way: TTFT, mean, isthmus / round robin", AS_GOOD),
    ours(ROUTER, "router, tool-use, 256 under way: ids computed, isthmus / least requests", AS_GOOD),
    ours(ROUTER, "router, tool-use, 256 under way: TTFT, mean, isthmus / least requests", AS_GOOD),
    ours(ROUTER, "router, tool-use, 256 under way: ids computed, isthmus / first-block affinity", AS_GOOD),
    ours(ROUTER, "router, tool-use, 256 under way: TTFT, mean, isthmus / first-block affinity", AS_GOOD),
    ours(ROUTER, "router, tool-use, 256 under way: ids computed, isthmus / approximate", AS_GOOD),
    ours(ROUTER, "router, tool-use, 256 under way: TTFT, mean, isthmus / approximate", AS_GOOD),
    specified(ROUTER, "router, tool-use, 256 under way: ids computed, isthmus / reference", AS_GOOD),
    specified(ROUTER, "router, tool-use, 256 under way: TTFT, mean, isthmus / reference", AS_GOOD),
    specified(ROUTER, "router, hot prefix, 64 requests: latency, mean, isthmus / round robin", HOT),
    specified(ROUTER, "router, hot prefix, 512 requests: latency, mean, isthmus / round robin", HOT),
    specified(ROUTER, "router, no overlap: requests of a worker, off the mean, by chance's sigma", EVEN),
    specified(ROUTER, "router, hashing, 64 ids a block: time per id", NAMED),
    specified(ROUTER, "router, hashing, 16 ids a block: time per id", NAMED),
    specified(ROUTER, "router, index, 2 threads: time per operation", INDEXED),
    info(ROUTER, "router, index, 2 threads: operations a second / a naive index's on one"),
    specified(ROUTER, "router, index: bytes of a worker's block", PAIR),
    specified(ROUTER, "router, index, 10 million blocks through full workers within 64 MiB: most bytes / the bound", AS_GOOD),
    specified(ROUTER, "router, index, 10 million blocks through full workers within 64 MiB: most bytes, second half / first half", FLAT),
    info(ROUTER, "router, index, 10 million blocks through full workers within 64 MiB: time per block"),
    specified(ROUTER, "router, decision, 8 workers, 134 blocks: p99", DECIDED),
    info(ROUTER, "router, decision, 8 workers, 134 blocks: p50"),
    info(ROUTER, "router, decision, 64 workers, 134 blocks: p99"),
    info(ROUTER, "router, decision, 64 workers, 134 blocks: p50"),
    info(ROUTER, "router, decision, 1000 workers, 134 blocks: p99"),
    info(ROUTER, "router, decision, 1000 workers, 134 blocks: p50"),
    info(ROUTER, "tokenization, no part cached, words cached: time per MB"),
    specified(ROUTER, "tokenization, no part cached / the bare tokenizer, words cached in both", COLD),
    specified(ROUTER, "tokenization, 9 of 10 turns cached / none", SEEN),

    info(DYNAMO, "Router, 8600 ids, 1000/s: CPU per call"),
    info(DYNAMO, "Router, 8600 ids, 1000/s: p50"),
    specified(DYNAMO, "Router, 8600 ids, 1000/s: p99", MILLISECOND),
    info(DYNAMO, "Processor, 1 KB chat, one at a time: CPU per call"),
    specified(DYNAMO, "Processor, 1 KB chat, one at a time: p50", MILLISECOND),
    info(DYNAMO, "Processor, 1 KB chat, one at a time: p99"),
    info(DYNAMO, "EPP, external stage, 1 KB, one at a time: without it, p50"),
    info(DYNAMO, "EPP, external stage, 1 KB, one at a time: p50"),
    info(DYNAMO, "EPP, external stage, 1 KB, one at a time: added, p50"),
    info(DYNAMO, "token transfer, 1K ids, by key: p50"),
    info(DYNAMO, "token transfer, 1K ids, by key: CPU per call"),
    info(DYNAMO, "token transfer, 1K ids, by key: bytes"),
    info(DYNAMO, "token transfer, 1K ids, in the body: p50"),
    info(DYNAMO, "token transfer, 1K ids, in the body: CPU per call"),
    info(DYNAMO, "token transfer, 1K ids, in the body: bytes"),
    info(DYNAMO, "token transfer, 1K ids, text alone: p50"),
    info(DYNAMO, "token transfer, 1K ids, text alone: CPU per call"),
    info(DYNAMO, "token transfer, 1K ids, text alone: bytes"),
    info(DYNAMO, "token transfer, 16K ids, by key: p50"),
    info(DYNAMO, "token transfer, 16K ids, by key: CPU per call"),
    info(DYNAMO, "token transfer, 16K ids, by key: bytes"),
    info(DYNAMO, "token transfer, 16K ids, in the body: p50"),
    info(DYNAMO, "token transfer, 16K ids, in the body: CPU per call"),
    info(DYNAMO, "token transfer, 16K ids, in the body: bytes"),
    info(DYNAMO, "token transfer, 16K ids, text alone: p50"),
    info(DYNAMO, "token transfer, 16K ids, text alone: CPU per call"),
    info(DYNAMO, "token transfer, 16K ids, text alone: bytes"),
    info(DYNAMO, "token transfer, 128K ids, by key: p50"),
    info(DYNAMO, "token transfer, 128K ids, by key: CPU per call"),
    info(DYNAMO, "token transfer, 128K ids, by key: bytes"),
    info(DYNAMO, "token transfer, 128K ids, in the body: p50"),
    info(DYNAMO, "token transfer, 128K ids, in the body: CPU per call"),
    info(DYNAMO, "token transfer, 128K ids, in the body: bytes"),
    info(DYNAMO, "token transfer, 128K ids, text alone: p50"),
    info(DYNAMO, "token transfer, 128K ids, text alone: CPU per call"),
    info(DYNAMO, "token transfer, 128K ids, text alone: bytes"),
    info(DYNAMO, "token transfer, 1M ids, by key: p50"),
    info(DYNAMO, "token transfer, 1M ids, by key: CPU per call"),
    info(DYNAMO, "token transfer, 1M ids, by key: bytes"),
    info(DYNAMO, "token transfer, 1M ids, in the body: p50"),
    info(DYNAMO, "token transfer, 1M ids, in the body: CPU per call"),
    info(DYNAMO, "token transfer, 1M ids, in the body: bytes"),
    info(DYNAMO, "token transfer, 1M ids, text alone: p50"),
    info(DYNAMO, "token transfer, 1M ids, text alone: CPU per call"),
    info(DYNAMO, "token transfer, 1M ids, text alone: bytes"),

    ours(GATEWAY, "gateway, 1000 routes x 100 pools: CPU of a pod event", POD_EVENT),
    info(GATEWAY, "gateway, 1000 routes x 100 pools: a pod event until Envoy has it, p50"),
    specified(GATEWAY, "gateway, 1000 routes x 100 pools: a pod event until Envoy has it, p99", POD_HAD),
    info(GATEWAY, "gateway, 1000 routes x 100 pools: CPU of an event of an EndpointSlice that nothing uses"),
    ours(GATEWAY, "gateway, 1000 routes x 100 pools: CPU of a route event", ROUTE_EVENT),
    info(GATEWAY, "gateway, 1000 routes x 100 pools: a route event until Envoy has it, p50"),
    specified(GATEWAY, "gateway, 1000 routes x 100 pools: a route event until Envoy has it, p99", ROUTE_HAD),
    specified(GATEWAY, "gateway, 1000 routes x 100 pools: build of the whole", BUILD),
    specified(GATEWAY, "gateway, 1000 routes x 100 pools: RSS", GATEWAY_MEMORY),
    specified(GATEWAY, "gateway, 1000 routes x 1000 Services, a host each: build of the whole", BUILD),
    specified(GATEWAY, "gateway, 1000 routes x 1000 Services, a host each: bytes for one endpoint", ONE_CHANGE),
    specified(GATEWAY, "gateway, 1000 routes x 1000 Services, a host each: bytes for one cluster", ONE_CHANGE),

    info(DATAPATH, "data path, no EPP: requests/s"),
    info(DATAPATH, "data path, no EPP: p50"),
    info(DATAPATH, "data path, no EPP: p99"),
    info(DATAPATH, "data path, no EPP: CPU of Envoy per request"),
    info(DATAPATH, "data path, no EPP: CPU of load per request"),
    info(DATAPATH, "data path, pool: requests/s"),
    design_at_least(DATAPATH, "data path, pool: requests/s / without EPP", BY_POOL),
    info(DATAPATH, "data path, pool: p50"),
    info(DATAPATH, "data path, pool: p99"),
    info(DATAPATH, "data path, pool: CPU of Envoy per request"),
    info(DATAPATH, "data path, pool: CPU of EPP per request"),
    info(DATAPATH, "data path, pool, floor as EPP: requests/s"),
    info(DATAPATH, "data path, pool, floor as EPP: requests/s / without EPP"),
    info(DATAPATH, "data path, pool, floor as EPP: p50"),
    info(DATAPATH, "data path, pool, floor as EPP: p99"),
    info(DATAPATH, "data path, pool, floor as EPP: CPU of Envoy per request"),
    info(DATAPATH, "data path, pool, floor as EPP: CPU of EPP per request"),
    info(DATAPATH, "data path, import in EndpointMode: requests/s"),
    design_at_least(DATAPATH, "data path, import in EndpointMode: requests/s / without EPP", BY_IMPORT),
    info(DATAPATH, "data path, import in EndpointMode: p50"),
    info(DATAPATH, "data path, import in EndpointMode: p99"),
    info(DATAPATH, "data path, import in EndpointMode: CPU of Envoy per request"),
    info(DATAPATH, "data path, import in EndpointMode: CPU of EPP per request"),
    info(DATAPATH, "data path, import of two clusters: requests/s"),
    design_at_least(DATAPATH, "data path, import of two clusters: requests/s / without EPP", BY_IMPORT),
    info(DATAPATH, "data path, import of two clusters: p50"),
    info(DATAPATH, "data path, import of two clusters: p99"),
    info(DATAPATH, "data path, import of two clusters: CPU of Envoy per request"),
    info(DATAPATH, "data path, import of two clusters: CPU of EPP per request"),
    info(DATAPATH, "data path, import in ParentMode: requests/s"),
    design_at_least(DATAPATH, "data path, import in ParentMode: requests/s / without EPP", BY_IMPORT),
    info(DATAPATH, "data path, import in ParentMode: p50"),
    info(DATAPATH, "data path, import in ParentMode: p99"),
    info(DATAPATH, "data path, import in ParentMode: CPU of Envoy per request"),
    info(DATAPATH, "data path, import in ParentMode: CPU of EPP per request"),
];

/// The goal of a figure, if it has one.
pub(crate) fn goal_of(name: &str) -> Option<Goal> {
    ROWS.iter().find(|row| row.name == name)?.goal
}

#[cfg(test)]
mod tests;
