//! The wait until the controller has let a member go: it then has no session there any more.

use std::{collections::BTreeMap, io::Write, time::Duration};

use tokio::time::{Instant, sleep};

use super::Parting;
use crate::{
    args::HomeArgs,
    controller::{self, View},
    known::{self, Met},
};

const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Looks in a row that find no controller, before it is taken for absent.
const LOOKS: u32 = 3;

/// Whether a controller has a member.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Held {
    No,
    /// And what says so.
    Yes(String),
    /// It was not seen this time.
    NotSeen(String),
    /// No controller is there that would let it go.
    ByNobody(String),
}

// === impl Parting ===

impl Parting {
    /// # Errors
    /// Why it is not known that the controller has let the member go.
    pub(super) async fn await_release(
        &self,
        limit: Duration,
        out: &mut impl Write,
    ) -> Result<(), String> {
        let HomeArgs {
            home_namespace: namespace,
            clusterset,
            ..
        } = &self.home_args;
        let (home, name) = (&self.home, &self.name);
        let end = Instant::now() + limit;
        let mut said = false;
        let mut looks_without = 0_u32;
        loop {
            let (view, record, leads) = futures::join!(
                controller::view(home, namespace),
                known::record(home, namespace, clusterset),
                controller::is_led(home, namespace, clusterset),
            );
            let record = record.map_err(|error| error.to_string());
            let leads = leads.map_err(|error| error.to_string());
            let found = held(name, &view, &record, &leads);
            looks_without = match found {
                Held::ByNobody(_) => looks_without.saturating_add(1),
                _ => 0,
            };
            let why = match found {
                Held::No => return Ok(()),
                Held::ByNobody(why) if looks_without >= LOOKS => {
                    return Err(format!("{}: {why}", home.name));
                }
                Held::Yes(why) | Held::NotSeen(why) | Held::ByNobody(why) => why,
            };
            if Instant::now() >= end {
                return Err(format!(
                    "{}: the controller has not let {name} go within {limit:?}: {why}",
                    home.name
                ));
            }
            if !std::mem::replace(&mut said, true) {
                // who does not read it can wait too
                let _ = writeln!(
                    out,
                    "{}: waiting for the controller to let {name} go",
                    home.name
                );
                let _ = out.flush();
            }
            sleep(LOOK_EVERY).await;
        }
    }
}

/// By what a pod of the controller says, by the record that the leader writes, and by its Lease. A standby lets a member go
/// by itself, and a record alone may be that of a controller that has ended.
fn held(
    name: &str,
    view: &Result<View, String>,
    record: &Result<Option<BTreeMap<String, Met>>, String>,
    leads: &Result<bool, String>,
) -> Held {
    if let Ok(view) = view
        && let Some(member) = view.clusters.iter().find(|member| member.name == name)
    {
        let by = format!("by {}, state {}", member.source, member.link);
        let guard = if view.guard {
            "; many members were lost at once, and it holds all removals: docs/runbook.md, MciIsolationGuard"
        } else {
            ""
        };
        return Held::Yes(format!("it has it still, {by}{guard}"));
    }
    if let Err(problem) = view {
        match leads {
            Ok(true) => {}
            Ok(false) => {
                return Held::ByNobody(format!(
                    "no controller leads, and none can be asked ({problem})"
                ));
            }
            Err(unread) => return Held::NotSeen(format!("{unread}; {problem}")),
        }
    }
    match record {
        Ok(Some(record)) if record.contains_key(name) => {
            Held::Yes("its record has it still".to_owned())
        }
        Ok(Some(_)) => Held::No,
        _ if view.as_ref().is_ok_and(|view| view.leader) => Held::No,
        Ok(None) => Held::NotSeen(
            "it has written no record of its members: is its ClusterSet another (--clusterset)?"
                .to_owned(),
        ),
        Err(problem) => Held::NotSeen(problem.clone()),
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::controller::MemberView;

    /// What a pod of the controller says; none: it cannot be asked.
    type Page = Option<(&'static [&'static str], bool)>;

    const HAS_IT: Page = Some((&["east", "west"], true));
    const HAS_NOT: Page = Some((&["west"], true));
    const STANDBY: Page = Some((&["west"], false));

    /// Whether the record has the member; none: there is no record. An error: it was not read.
    type Recorded = Result<Option<bool>, ()>;

    const RECORDED: Recorded = Ok(Some(true));
    const LET_GO: Recorded = Ok(Some(false));
    const NO_RECORD: Recorded = Ok(None);

    #[rstest]
    #[case::in_use(HAS_IT, RECORDED, Ok(true), "Yes")]
    #[case::recorded(HAS_NOT, RECORDED, Ok(true), "Yes")]
    #[case::let_go(HAS_NOT, LET_GO, Ok(true), "No")]
    #[case::of_a_standby(STANDBY, LET_GO, Ok(true), "No")]
    #[case::without_a_lease(HAS_NOT, LET_GO, Ok(false), "No")]
    #[case::by_the_record_alone(None, RECORDED, Ok(true), "Yes")]
    #[case::let_go_by_the_record_alone(None, LET_GO, Ok(true), "No")]
    #[case::no_controller(None, RECORDED, Ok(false), "ByNobody")]
    #[case::no_controller_and_no_record(None, NO_RECORD, Ok(false), "ByNobody")]
    #[case::the_lease_is_not_read(None, LET_GO, Err(()), "NotSeen")]
    #[case::the_leader_alone(HAS_NOT, Err(()), Ok(true), "No")]
    #[case::the_leader_has_written_no_record(HAS_NOT, NO_RECORD, Ok(true), "No")]
    #[case::a_standby_alone(STANDBY, Err(()), Ok(true), "NotSeen")]
    #[case::a_standby_of_another_clusterset(STANDBY, NO_RECORD, Ok(false), "NotSeen")]
    #[case::a_lease_without_a_record(None, NO_RECORD, Ok(true), "NotSeen")]
    #[case::nothing_is_seen(None, Err(()), Ok(true), "NotSeen")]
    fn a_member_is_let_go_once_page_and_record_have_it_no_more(
        #[case] page: Page,
        #[case] recorded: Recorded,
        #[case] leads: Result<bool, ()>,
        #[case] expected: &str,
    ) {
        let view = page.map(|(names, leader)| View {
            leader,
            clusters: names
                .iter()
                .map(|name| MemberView {
                    name: (*name).to_owned(),
                    ..MemberView::default()
                })
                .collect(),
            ..View::default()
        });
        let mk_record = |has_it: bool| {
            let names = if has_it { vec!["east"] } else { vec![] };
            let met = names
                .iter()
                .map(|name| ((*name).to_owned(), Met::default()));
            met.collect()
        };
        let missing = || "forbidden".to_owned();
        let found = held(
            "east",
            &view.ok_or_else(missing),
            &recorded
                .map(|found| found.map(mk_record))
                .map_err(|()| missing()),
            &leads.map_err(|()| missing()),
        );
        let found = format!("{found:?}");
        assert!(
            found.starts_with(&format!("{expected}(")) || found == expected,
            "{found}"
        );
    }
}
