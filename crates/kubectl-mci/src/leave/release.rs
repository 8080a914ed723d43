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
        loop {
            let (view, record, leads) = futures::join!(
                controller::view(home, namespace),
                known::record(home, namespace, clusterset),
                controller::is_led(home, namespace, clusterset),
            );
            let record = record.map_err(|error| error.to_string());
            let why = match held(name, &view, &record, leads.unwrap_or(false)) {
                Held::No => return Ok(()),
                Held::ByNobody(why) => return Err(format!("{}: {why}", home.name)),
                Held::Yes(why) | Held::NotSeen(why) => why,
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
    record: &Result<BTreeMap<String, Met>, String>,
    leads: bool,
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
    let is_there = view.is_ok() || leads;
    match record {
        Ok(_) if !is_there => {
            let problem = view.as_ref().err().cloned().unwrap_or_default();
            Held::ByNobody(format!(
                "no controller leads, and none can be asked ({problem})"
            ))
        }
        Ok(record) if record.contains_key(name) => Held::Yes("its record has it still".to_owned()),
        Ok(_) => Held::No,
        Err(_) if view.as_ref().is_ok_and(|view| view.leader) => Held::No,
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

    #[rstest]
    #[case::in_use(HAS_IT, Some(true), true, "Yes")]
    #[case::recorded(HAS_NOT, Some(true), true, "Yes")]
    #[case::let_go(HAS_NOT, Some(false), true, "No")]
    #[case::of_a_standby(STANDBY, Some(false), true, "No")]
    #[case::without_a_lease(HAS_NOT, Some(false), false, "No")]
    #[case::by_the_record_alone(None, Some(true), true, "Yes")]
    #[case::let_go_by_the_record_alone(None, Some(false), true, "No")]
    #[case::no_controller(None, Some(true), false, "ByNobody")]
    #[case::no_controller_and_no_record(None, Some(false), false, "ByNobody")]
    #[case::the_leader_alone(HAS_NOT, None, true, "No")]
    #[case::a_standby_alone(STANDBY, None, true, "NotSeen")]
    #[case::nothing_is_seen(None, None, true, "NotSeen")]
    fn a_member_is_let_go_once_page_and_record_have_it_no_more(
        #[case] page: Page,
        #[case] recorded: Option<bool>,
        #[case] leads: bool,
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
        let record = recorded.map(|has_it| {
            let names = if has_it { vec!["east"] } else { vec![] };
            let met = names
                .iter()
                .map(|name| ((*name).to_owned(), Met::default()));
            met.collect()
        });
        let missing = || "forbidden".to_owned();
        let found = held(
            "east",
            &view.ok_or_else(missing),
            &record.ok_or_else(missing),
            leads,
        );
        let found = format!("{found:?}");
        assert!(found.starts_with(expected), "{found}");
    }
}
