//! Which Gateways and hosts follow from an entry.

use rstest::rstest;

use super::*;
use crate::fixture::{key, mk_parent_entry, mk_settings};
use crate::model::{Mode, Readiness};
use crate::select::imported;

const OTHER: &str = "10.3.0.8";

/// One whose Gateway is at 10.3.0.7.
fn mk_entry(ports: &[u16], hostnames: &[&str]) -> ImportedCluster {
    mk_parent_entry("east", "10.3.0.7", ports, hostnames)
}

fn add(entry: &mut ImportedCluster, ports: &[u16], hostnames: &[&str]) {
    let other = mk_parent_entry("east", OTHER, ports, hostnames);
    entry.parents.extend(other.parents);
}

fn decide(entry: &ImportedCluster) -> Result<ParentMode, Ineligible> {
    match imported(&key("llm"), entry, &mk_settings(), &[], None).mode {
        Ok(Mode::Parent(mode)) => Ok(mode),
        Ok(other) => panic!("{other:?}"),
        Err(why) => Err(why),
    }
}

/// `https 10.3.0.7:443 | hosts`
fn show(entry: &ImportedCluster) -> String {
    let mode = match decide(entry) {
        Ok(mode) => mode,
        Err(why) => return why.reason().to_owned(),
    };
    let scheme = if mode.tls { "https" } else { "http" };
    let addresses: Vec<String> = match &mode.addresses {
        ParentAddresses::Ips(ips) => ips.iter().map(ToString::to_string).collect(),
        ParentAddresses::Dns(hosts) => {
            let hosts = hosts.iter().map(|(host, port)| format!("{host}:{port}"));
            hosts.collect()
        }
    };
    let hosts: Vec<String> = mode.hosts.iter().map(ToString::to_string).collect();
    format!("{scheme} {} | {}", addresses.join(" "), hosts.join(" "))
}

#[rstest]
#[case::http(&[80], &[], "http 10.3.0.7:80 | ")]
#[case::https_before_http(&[80, 443], &["a.example"], "https 10.3.0.7:443 | a.example")]
#[case::as_published(&[80], &["b.example", "*.c.example", "a.example"], "http 10.3.0.7:80 | b.example *.c.example a.example")]
#[case::each_once(&[80], &["A.example.", "a.example"], "http 10.3.0.7:80 | a.example")]
#[case::no_host_name(&[80], &["a b", "a.example\r\n", "*", "-", "10.0.0.1:80"], "http 10.3.0.7:80 | ")]
#[case::wildcards_alone(&[443], &["*.a.example"], "HostnameUnknown")]
#[case::a_wildcard_and_a_host(&[443], &["*.a.example", "b.example"], "https 10.3.0.7:443 | *.a.example b.example")]
#[case::nothing_to_verify_by(&[443], &[], "HostnameUnknown")]
#[case::no_listener(&[], &["a.example"], "AddressNotAssigned")]
fn gateway_is_reached_at_its_best_listener(
    #[case] ports: &[u16],
    #[case] hostnames: &[&str],
    #[case] shown: &str,
) {
    assert_eq!(show(&mk_entry(ports, hostnames)), shown);
}

#[rstest]
#[case::all_denied(&["127.0.0.1", "169.254.169.254"], "AddressDenied")]
#[case::some_denied(&["10.3.0.7", "localhost"], "http 10.3.0.7:80 | ")]
#[case::names(&["lb.east.example", "10.3.0.7"], "http 10.3.0.7:80 lb.east.example:80 | ")]
#[case::none(&[], "AddressNotAssigned")]
fn addresses_pass_the_deny_list(#[case] addresses: &[&str], #[case] shown: &str) {
    let mut entry = mk_entry(&[80], &[]);
    entry.parents[0].addresses = addresses.iter().map(ToString::to_string).collect();
    assert_eq!(show(&entry), shown);
}

#[rstest]
#[case::same_hosts(&[80], &["a.example"], "http 10.3.0.7:80 10.3.0.8:80 | a.example")]
#[case::wider(&[80], &["*.example"], "http 10.3.0.7:80 10.3.0.8:80 | a.example")]
#[case::any_host(&[80], &[], "http 10.3.0.7:80 10.3.0.8:80 | a.example")]
#[case::other_host(&[80], &["b.example"], "http 10.3.0.7:80 | a.example")]
#[case::other_port(&[8080], &["a.example"], "http 10.3.0.7:80 10.3.0.8:8080 | a.example")]
#[case::only_it_has_https(&[443], &["b.example"], "https 10.3.0.8:443 | b.example")]
fn gateways_that_take_the_same_hosts_are_used_together(
    #[case] ports: &[u16],
    #[case] hostnames: &[&str],
    #[case] shown: &str,
) {
    let mut entry = mk_entry(&[80], &["a.example"]);
    add(&mut entry, ports, hostnames);
    assert_eq!(show(&entry), shown);
}

/// The hop must outlast a Gateway that is not programmed for a moment.
#[test]
fn gateways_that_are_not_programmed_are_left_out_while_another_is() {
    let mut entry = mk_entry(&[80], &[]);
    add(&mut entry, &[80], &[]);
    let readiness =
        |entry: &ImportedCluster| imported(&key("llm"), entry, &mk_settings(), &[], None).readiness;
    let both = show(&entry);
    entry.parents[0].unprogrammed = true;
    assert_eq!(show(&entry), "http 10.3.0.8:80 | ");
    assert_eq!(readiness(&entry), Readiness::Ready);
    entry.parents[1].unprogrammed = true;
    assert_eq!(show(&entry), both);
    let none = Readiness::NotReady("ParentNotProgrammed".to_owned());
    assert_eq!(readiness(&entry), none);
}

/// Where the routes there are not known, the listeners are.
#[test]
fn hosts_are_those_that_the_listener_takes() {
    let mut entry = mk_entry(&[80], &["x.a.example", "b.example"]);
    entry.parents[0].listeners[0].hostname = Some("*.a.example".into());
    assert_eq!(show(&entry), "http 10.3.0.7:80 | x.a.example");
    entry.parents[0].hostnames.clear();
    assert_eq!(show(&entry), "http 10.3.0.7:80 | *.a.example");
}

/// Its certificate is known for one host, and requests to others get that one.
#[test]
fn listener_for_all_hosts_hides_none_that_another_has() {
    let with_hosts = |ports: &[u16], hosts: &[Option<&str>]| {
        let mut entry = mk_entry(ports, &[]);
        let listener = entry.parents[0].listeners.remove(0);
        let listeners = hosts.iter().map(|host| RemoteListener {
            hostname: host.map(str::to_owned),
            ..listener.clone()
        });
        entry.parents[0].listeners = listeners.collect();
        entry
    };
    for hosts in [[None, Some("llm.example")], [Some("llm.example"), None]] {
        let shown = show(&with_hosts(&[443], &hosts));
        assert_eq!(shown, "https 10.3.0.7:443 | llm.example");
        let shown = show(&with_hosts(&[80], &hosts));
        assert_eq!(shown, "http 10.3.0.7:80 | ");
    }
    assert_eq!(show(&with_hosts(&[443], &[None])), "HostnameUnknown");
    // it takes the hosts of the first one, too
    let mut entry = mk_entry(&[443], &["a.example"]);
    let second = with_hosts(&[443], &[None, Some("llm.example")]);
    entry.parents.extend(second.parents);
    entry.parents[1].addresses = vec![OTHER.into()];
    assert_eq!(show(&entry), "https 10.3.0.7:443 10.3.0.8:443 | a.example");
}

#[test]
fn names_do_not_lead_to_networks_of_this_cluster() {
    let own = ["10.1.255.0/24".parse().unwrap()];
    let denied = |address: &str| {
        let entry = mk_parent_entry("east", address, &[80], &[]);
        match imported(&key("llm"), &entry, &mk_settings(), &own, None).mode {
            Ok(Mode::Parent(mode)) => mode.denied,
            other => panic!("{other:?}"),
        }
    };
    let is_denied = |ip: &str| {
        let ip = ip.parse().unwrap();
        denied("lb.east.example")
            .iter()
            .any(|cidr| cidr.contains(ip))
    };
    assert!(is_denied("169.254.169.254") && is_denied("10.1.255.9"));
    assert!(!is_denied("10.3.0.7"));
    assert_eq!(denied("10.3.0.7"), []);
}
