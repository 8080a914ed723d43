use rstest::rstest;

use super::*;
use crate::{
    fixtures::{at, mk_labelled, mk_page, mk_snapshot, read, scrape},
    request::SessionAt,
    table::Table,
};

fn passing(filter: &Filter, table: &Table, request: &Request) -> Vec<usize> {
    let mut candidates = Candidates::new(table, table.allowed(None), &[]);
    filter.apply(request, &mut candidates);
    candidates.members().collect()
}

fn set(values: &[&str]) -> BTreeSet<Arc<str>> {
    values.iter().map(|value| (*value).into()).collect()
}

#[rstest]
#[case(Operator::In(set(&["l4", "h100"])), &[0, 1])]
#[case(Operator::NotIn(set(&["l4"])), &[1, 2])]
#[case(Operator::Exists, &[0, 1])]
#[case(Operator::DoesNotExist, &[2])]
fn expressions_select_as_in_kubernetes(#[case] operator: Operator, #[case] want: &[usize]) {
    let snapshot = mk_labelled(&[
        &[("gpu", "l4"), ("zone", "a")],
        &[("gpu", "h100")],
        &[("zone", "a")],
    ]);
    let mut selector = Selector {
        labels: Vec::new(),
        expressions: vec![Expression {
            key: "gpu".into(),
            operator,
        }],
    };
    let table = read(&snapshot);
    let filter = Filter::LabelSelector(selector.clone());
    assert_eq!(passing(&filter, &table, &Request::default()), want);
    selector.labels.push(("zone".into(), "a".into()));
    let in_zone: Vec<_> = want.iter().copied().filter(|index| *index != 1).collect();
    let filter = Filter::LabelSelector(selector);
    assert_eq!(passing(&filter, &table, &Request::default()), in_zone);
}

#[rstest]
#[case(false, &[1])]
#[case(true, &[1, 2])]
fn a_label_has_one_of_the_values_or_may_be_absent(
    #[case] allows_no_label: bool,
    #[case] want: &[usize],
) {
    let table = read(&mk_labelled(&[&[("tier", "x")], &[("tier", "b")], &[]]));
    let filter = Filter::ByLabel {
        label: "tier".into(),
        valid_values: set(&["a", "b"]),
        allows_no_label,
    };
    assert_eq!(passing(&filter, &table, &Request::default()), want);
}

#[rstest]
#[case(Role::Decode, &[0, 2, 3, 4])]
#[case(Role::Prefill, &[1, 2, 3])]
#[case(Role::Encode, &[5])]
fn a_role_counts_for_each_of_its_parts(#[case] role: Role, #[case] want: &[usize]) {
    let table = read(&mk_labelled(&[
        &[("llm-d.ai/role", "decode")],
        &[("inference.networking.k8s.io/role", "prefill")],
        &[("llm-d.ai/role", "prefill-decode")],
        &[("llm-d.ai/role", "both")],
        &[],
        &[("llm-d.ai/role", "encode")],
    ]));
    assert_eq!(
        passing(&Filter::Role(role), &table, &Request::default()),
        want
    );
}

#[test]
fn a_session_stays_where_it_is_served_while_that_is_a_candidate() {
    let snapshot = mk_snapshot(3);
    let table = read(&snapshot);
    let mut request = Request::default();
    assert_eq!(
        passing(&Filter::SessionAffinity, &table, &request),
        [0, 1, 2]
    );
    request.session = Some(SessionAt::Slot(at(&snapshot, 1).slot()));
    assert_eq!(passing(&Filter::SessionAffinity, &table, &request), [1]);
}

#[test]
fn saturated_endpoints_are_left_out_unless_all_are() {
    let snapshot = mk_snapshot(2);
    let filter = |headroom| {
        Filter::Saturation(Detector::Utilization {
            queue_depth: 10.0,
            kv_utilization: 0.8,
            headroom,
        })
    };
    scrape(&at(&snapshot, 0), mk_page(10.0, 0.0, 0.0));
    scrape(&at(&snapshot, 1), mk_page(5.0, 0.0, 0.0));
    let table = read(&snapshot);
    assert_eq!(passing(&filter(0.0), &table, &Request::default()), [1]);
    assert_eq!(passing(&filter(0.1), &table, &Request::default()), [0, 1]);
    scrape(&at(&snapshot, 1), mk_page(0.0, 0.0, 0.9));
    let table = read(&snapshot);
    assert_eq!(passing(&filter(0.0), &table, &Request::default()), [0, 1]);
}

#[rstest]
#[case(Filter::LabelSelector(Selector::default()), "label-selector-filter")]
#[case(Filter::ByLabel { label: "l".into(), valid_values: set(&[]), allows_no_label: true }, "by-label")]
#[case(Filter::Role(Role::Decode), "decode-filter")]
#[case(Filter::Role(Role::Prefill), "prefill-filter")]
#[case(Filter::Role(Role::Encode), "encode-filter")]
#[case(Filter::SessionAffinity, "session-affinity-filter")]
#[case(Filter::Saturation(Detector::default()), "utilization-detector")]
#[case(Filter::Saturation(Detector::CONCURRENCY), "concurrency-detector")]
fn filters_are_called_by_their_types(#[case] filter: Filter, #[case] want: &str) {
    assert_eq!(filter.name(), want);
}
