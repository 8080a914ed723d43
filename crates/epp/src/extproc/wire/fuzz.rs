//! Any bytes as a message of the proxy.

use std::net::{IpAddr, SocketAddr};

use envoy_types::pb::google::protobuf::ListValue;
use prost::Message;
use scheduling::Allowed;

use super::{Wanted, inputs, subset};
use crate::{
    extproc::message::Input,
    proto::{Kind, ProcessingRequest, Value},
};

pub(crate) fn run(data: &[u8]) {
    if let Ok(message) = ProcessingRequest::decode(data) {
        let count = inputs(message.clone(), mk_wanted(true)).len();
        assert!(count <= 2);
        let bare = inputs(message, mk_wanted(false));
        let has_context = |input: &Input| matches!(input, Input::Context(_));
        assert!(!bare.iter().any(has_context), "nobody asked");
    }
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    let string = |text: &str| Value {
        kind: Some(Kind::StringValue(text.to_owned())),
    };
    let list = ListValue {
        values: text.split(',').map(string).collect(),
    };
    let list = Value {
        kind: Some(Kind::ListValue(list)),
    };
    let of_string = subset(string(text));
    assert_eq!(subset(list), of_string, "a list is a string with commas");
    let entries = of_string.entries();
    let words = text.split(',').map(str::trim);
    let usable = words.filter(|word| is_address(word)).count();
    assert_eq!(entries.len(), usable);
    for entry in entries {
        let again = match entry {
            Allowed::Ip(ip) => ip.to_string(),
            Allowed::Address(address) => address.to_string(),
        };
        assert_eq!(Allowed::parse(&again), Some(*entry));
    }
}

fn is_address(word: &str) -> bool {
    let inner = word
        .strip_prefix('[')
        .and_then(|word| word.strip_suffix(']'));
    let ip = inner.unwrap_or(word).parse::<IpAddr>();
    ip.is_ok() || word.parse::<SocketAddr>().is_ok()
}

fn mk_wanted(all: bool) -> Wanted {
    Wanted {
        attributes: all,
        content_type: all,
    }
}
