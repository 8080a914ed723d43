use mci_model::index::origin::SourceKind;
use rstest::rstest;

use super::*;
use crate::{
    known::{MEMBERS_SECRET, Met, mk_secret, of_secret},
    setup::Setup,
};

const HOME: Place<'_> = Place {
    context: "west",
    namespace: "isthmus-system",
    clusterset: "default",
};

#[test]
fn flags_that_are_not_the_defaults_lead_to_another_home() {
    assert_eq!(HOME.flags(), "--home-context west");
    let other = Place {
        namespace: "prod",
        clusterset: "blue",
        ..HOME
    };
    let flags = "--home-context west --home-namespace prod --clusterset blue";
    assert_eq!(other.flags(), flags);
}

/// East, by the context of its name.
const EAST: Candidate<'_> = Candidate {
    name: "east",
    context: "east",
    uid: Some("uid-east"),
    server: Some("https://east"),
};

fn mk_definition(name: &str) -> Definition {
    Definition {
        uid: Some(format!("uid-{name}")),
        ..of_secret(&mk_secret(name, &format!("https://{name}")))
    }
}

fn mk_key(name: &str) -> Definition {
    Definition {
        source: Source::Key {
            namespace: "isthmus-system".to_owned(),
            secret: MEMBERS_SECRET.to_owned(),
            key: format!("{name}.yaml"),
        },
        ..mk_definition(name)
    }
}

fn mk_met(name: &str, source: &str) -> (String, Met) {
    let met = Met {
        uids: [format!("uid-{name}")].into(),
        source: source.to_owned(),
    };
    (name.to_owned(), met)
}

fn mk_setup() -> Setup {
    let deployment = serde_json::json!({"spec": {"selector": {}, "template": {}}});
    Setup::of(&serde_json::from_value(deployment).expect("a Deployment"))
}

/// East and north are members by Secrets of their own, and the controller has met both.
fn mk_known() -> Known {
    let met = |name: &str| mk_met(name, &format!("Secret isthmus-system/{name}"));
    Known {
        setup: Some(mk_setup()),
        definitions: vec![mk_definition("east"), mk_definition("north")],
        met: [met("east"), met("north")].into(),
        ..Known::default()
    }
}

/// One change of what is known, and what is then said.
type Case = (&'static str, fn(&mut Known), &'static str);

fn refused(known: &Known, candidate: &Candidate<'_>) -> String {
    let refusal = refuse_join(candidate, known, &HOME);
    refusal
        .map(|refusal| refusal.to_string())
        .unwrap_or_default()
}

#[test]
fn a_new_cluster_joins_and_a_member_joins_again() {
    assert_eq!(refused(&mk_known(), &EAST), "");
    let mut known = mk_known();
    known.definitions.remove(0);
    known.met.remove("east");
    assert_eq!(refused(&known, &EAST), "");
    // its Secret is gone, and the controller has not let it go yet
    let mut known = mk_known();
    known.definitions.remove(0);
    assert_eq!(refused(&known, &EAST), "");
}

#[test]
fn a_name_is_given_up_with_the_rights_that_are_recorded_there() {
    let mut known = mk_known();
    let key = Definition {
        granted: Granted::of(Some("10.2.0.0/16"), Some("llm")),
        ..mk_key("east")
    };
    known.definitions.insert(0, key);
    let refusal = refused(&known, &EAST);
    let rights = "; then join with --pod-cidr 10.2.0.0/16 --namespaces llm";
    assert!(refusal.ends_with(rights), "{refusal}");
}

#[test]
fn a_name_that_is_held_or_a_cluster_that_is_a_member_does_not_join() {
    let cases: [Case; 11] = [
        (
            "a key of the mounted Secret has the name",
            |known| known.definitions.insert(0, mk_key("east")),
            "held by key east.yaml of Secret isthmus-system/isthmus-members",
        ),
        (
            "another Secret has it by its annotation",
            |known| {
                known.definitions[0] = mk_definition("old");
                known.definitions[0].name = "east".to_owned();
            },
            "held by Secret isthmus-system/old",
        ),
        (
            "a Secret of the name is another member",
            |known| known.definitions[0].name = "orient".to_owned(),
            "Secret isthmus-system/east is the member orient",
        ),
        (
            "a file that is not seen here",
            |known| {
                known.definitions.remove(0);
                known.met.extend([mk_met("east", "file east.yaml")]);
                known.unseen.insert(SourceKind::File, String::new());
            },
            "held by file east.yaml",
        ),
        (
            "home itself",
            |known| {
                known.definitions[0].source = Source::Home;
            },
            "held by --self-name",
        ),
        (
            "the name was another cluster's",
            |known| {
                known.definitions[0].uid = None;
                known.met.extend([(
                    "east".to_owned(),
                    Met {
                        uids: ["uid-before".to_owned()].into(),
                        ..Met::default()
                    },
                )]);
            },
            "another cluster (uid uid-east) than the member east is (uid uid-before)",
        ),
        (
            "the same, and its Secret is gone",
            |known| {
                known.definitions.remove(0);
                let uids = &mut known.met.get_mut("east").expect("met").uids;
                *uids = ["uid-before".to_owned()].into();
            },
            "if the cluster was made anew: wait until the controller has let the old one go",
        ),
        (
            "the cluster has another name, as the controller has found out",
            |known| {
                let uids = &mut known.met.get_mut("north").expect("met").uids;
                uids.insert("uid-east".to_owned());
            },
            "is the member north already",
        ),
        (
            "the same by its address",
            |known| {
                known.met.remove("north");
                known.definitions[1] = of_secret(&mk_secret("north", "https://east"));
            },
            "is the member north already, by Secret isthmus-system/north",
        ),
        (
            "the controller is of another ClusterSet",
            |known| known.setup.as_mut().expect("a setup").clusterset = Some("prod".to_owned()),
            "--clusterset prod",
        ),
        (
            "the controller reads no Secrets",
            |known| known.setup.as_mut().expect("a setup").secrets = false,
            "a Secret makes no member",
        ),
    ];
    for (what, change, words) in cases {
        let mut known = mk_known();
        change(&mut known);
        let text = refused(&known, &EAST);
        assert!(text.contains(words), "{what}: {text:?}");
    }
}

#[test]
fn a_cluster_that_was_made_anew_joins_once_that_is_accepted() {
    let anew = Candidate {
        uid: Some("uid-anew"),
        ..EAST
    };
    let mut known = mk_known();
    let text = refused(&known, &anew);
    let annotate = "annotate --overwrite secret east isthmus.dev/accept-identity=uid-anew";
    assert!(text.contains(annotate), "{text}");
    known.definitions[0].accepts = Some("uid-anew".to_owned());
    assert_eq!(refused(&known, &anew), "");
    // it is not where the old one was
    assert_eq!(present_server(&anew, &known, &HOME), None);
}

#[test]
fn a_member_that_joins_again_stays_where_its_secret_has_it() {
    let mut known = mk_known();
    let server = present_server(&EAST, &known, &HOME);
    assert_eq!(server.as_deref(), Some("https://east"));
    known.definitions.remove(0);
    assert_eq!(present_server(&EAST, &known, &HOME), None);
}

fn leave(known: &Known, candidate: &Candidate<'_>, rights: bool) -> Result<Leave, String> {
    let plan = plan_leave(candidate, known, &HOME, rights, false);
    plan.map_err(|refusal| refusal.to_string())
}

fn go(secrets: &[&str], other_name: Option<&str>) -> Leave {
    Leave::Go {
        secrets: secrets.iter().map(|one| (*one).to_owned()).collect(),
        other_name: other_name.map(ToOwned::to_owned),
        identified: true,
    }
}

#[test]
fn a_member_by_secrets_leaves() {
    let mut known = mk_known();
    assert_eq!(leave(&known, &EAST, true), Ok(go(&["east"], None)));
    let mut second = mk_definition("second");
    second.name = "east".to_owned();
    second.uid = None;
    known.definitions.push(second);
    assert_eq!(
        leave(&known, &EAST, true),
        Ok(go(&["east", "second"], None))
    );
}

#[test]
fn one_whose_secret_is_gone_already_is_waited_for() {
    let mut known = mk_known();
    known.definitions.remove(0);
    assert_eq!(leave(&known, &EAST, true), Ok(go(&[], None)));
    // a key that was taken out reaches the controller's files a minute later
    known.met.extend([mk_met("east", "file east.yaml")]);
    assert_eq!(leave(&known, &EAST, true), Ok(go(&[], None)));
}

#[test]
fn rights_stay_for_another_name_of_the_cluster() {
    let mut known = mk_known();
    known.definitions[1].uid = Some("uid-east".to_owned());
    known.met.remove("north");
    assert_eq!(leave(&known, &EAST, true), Ok(go(&["east"], Some("north"))));
}

#[test]
fn a_member_that_was_never_identified_leaves_and_is_named_so() {
    let mut known = mk_known();
    known.definitions[0].uid = None;
    known.met.remove("east");
    let unidentified = Leave::Go {
        secrets: vec!["east".to_owned()],
        other_name: None,
        identified: false,
    };
    assert_eq!(leave(&known, &EAST, true), Ok(unidentified));
}

#[test]
fn what_no_secret_defines_does_not_leave() {
    let cases: [Case; 7] = [
        (
            "home knows nothing of it",
            |known| *known = Known::default(),
            "no Secret in isthmus-system makes east a member",
        ),
        (
            "a key of the mounted Secret, beside a Secret",
            |known| known.definitions.insert(0, mk_key("east")),
            "by key east.yaml of Secret isthmus-system/isthmus-members, which this does not take away; first: kubectl --context west -n isthmus-system patch secret isthmus-members",
        ),
        (
            "home itself",
            |known| known.definitions[0].source = Source::Home,
            "run the controller without --self-name",
        ),
        (
            "a ClusterProfile",
            |known| {
                known.definitions[0].source = Source::Profile {
                    namespace: "fleet".to_owned(),
                    name: "east".to_owned(),
                };
            },
            "a member by ClusterProfile fleet/east",
        ),
        (
            "a file that is not seen here",
            |known| {
                known.definitions.remove(0);
                known.met.extend([mk_met("east", "file east.yaml")]);
                known.unseen.insert(SourceKind::File, String::new());
            },
            "which has it by file east.yaml",
        ),
        (
            "the context leads elsewhere",
            |known| {
                known.definitions[0].uid = Some("uid-south".to_owned());
                known.met.extend([mk_met("east", "")]);
                known.met.get_mut("east").expect("met").uids = ["uid-south".to_owned()].into();
            },
            "another cluster (uid uid-east) than the member east is (uid uid-south)",
        ),
        (
            "another ClusterSet",
            |known| known.setup.as_mut().expect("a setup").clusterset = Some("prod".to_owned()),
            "--clusterset prod",
        ),
    ];
    for (what, change, words) in cases {
        let mut known = mk_known();
        change(&mut known);
        let text = leave(&known, &EAST, true).expect_err(what);
        assert!(text.contains(words), "{what}: {text:?}");
    }
}

#[rstest]
#[case::nothing_is_left(false, false, Some(Leave::Done))]
#[case::rights_of_somebody(true, false, None)]
#[case::rights_of_nobody_as_the_user_says(
    true,
    true,
    Some(Leave::Go { secrets: vec![], other_name: None, identified: false })
)]
fn what_home_does_not_know_leaves_with_its_rights_by_force_alone(
    #[case] in_use: bool,
    #[case] force: bool,
    #[case] expected: Option<Leave>,
) {
    let plan = plan_leave(&EAST, &Known::default(), &HOME, in_use, force);
    assert_eq!(plan.ok(), expected);
}
