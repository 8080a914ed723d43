//! Who of several controllers writes.

use lease::{Claim, Election, Elector, identity};
use moment::Clock;
use process::Health;

use super::LOOP_LIMIT;
use mci_inventory::Home;
use mci_inventory::lease_name;

/// No election: only this process writes, or, with a dry run, none.
pub(super) fn alone(dry_run: bool, clock: Clock) -> Election {
    Election::settled(if dry_run {
        Claim::never(clock)
    } else {
        Claim::always()
    })
}

/// Starts leader election on the Lease of this ClusterSet at home.
pub(super) fn begin(home: &Home, clusterset: &str, clock: Clock, health: &Health) -> Election {
    let name = lease_name(clusterset);
    let me = identity();
    tracing::info!(
        namespace = home.namespace,
        lease = name,
        identity = me,
        "standing for election"
    );
    let elector = Elector::new(home.client.clone(), &home.namespace, &name, &me, clock);
    let pulse = health.watch("lease", LOOP_LIMIT);
    Election::begin(elector, std::future::ready(()), move || pulse.beat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn alone_it_may_write_and_in_a_dry_run_never() {
        let clock = Clock::start();
        for dry_run in [false, true] {
            let claim = alone(dry_run, clock).claim();
            assert_eq!(claim.is_valid(clock.now()), !dry_run);
        }
    }
}
