//! What a reply of the Processor means for a request. Pure.

use std::net::SocketAddr;

use bytes::Bytes;
use processor_api::{Degraded, ProcessReply, TokenKey};
use scheduling::{Narrowed, Quality, Table};
use smallvec::SmallVec;

use super::{Ask, Switches, label::Label};

/// The members that a request may go to, at this moment.
pub(crate) struct Members<'a> {
    table: &'a Table,
    /// Indexes into the table, ordered.
    allowed: Vec<usize>,
}

/// What a reply means.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Resolution {
    /// Who is to serve the request, as indexes of members, best first, at least one, each once.
    pub(crate) workers: Result<SmallVec<[usize; 1]>, Internal>,
    /// The data parallel rank that the first of them is to run it on, where several are behind its address.
    pub(crate) rank: Option<u32>,
    /// What the worker gets.
    pub(crate) tokens: Tokens,
    /// Of the prompt.
    pub(crate) count: Option<u32>,
    /// Of the prompt, cached by the chosen worker.
    pub(crate) overlap: Option<u32>,
    /// The ids could not be put into the token cache.
    pub(crate) is_uncached: bool,
}

/// Why the endpoint picker chooses itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Internal {
    /// Routing was not asked for.
    NotAsked,
    /// The reply has no worker, and may say why.
    NoWorker(Option<Degraded>),
    /// The worker that it names is refused.
    Refused(RefusedWorker),
}

/// Why a worker is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RefusedWorker {
    /// It is none of the pool.
    NoMember,
    /// It is none that the proxy or the request's rule allows.
    NotAllowed,
    /// Its scrapes fail, and those of others do not.
    Suspect,
}

/// How a worker gets the ids of a prompt.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Tokens {
    /// Not at all.
    #[default]
    None,
    /// By a key of the token cache.
    Key(TokenKey),
    /// In the body, as a JSON array.
    Ids(Bytes),
}

/// What a reply to this question means, if the request may go to these members.
pub(crate) fn resolve(
    reply: ProcessReply,
    ask: Ask,
    switches: &Switches,
    members: &Members<'_>,
) -> Resolution {
    let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
    let tokens = match (reply.token_key, reply.token_value) {
        _ if !ask.transfer => Tokens::None,
        (Some(key), _) => Tokens::Key(key),
        (None, Some(ids)) if switches.token_field.is_some() => Tokens::Ids(ids),
        (None, _) => Tokens::None,
    };
    let degraded = |one: &Degraded| *one != Degraded::CacheWrite;
    let worker = match (ask.route, &reply.worker_address) {
        (false, _) => Err(Internal::NotAsked),
        (true, None) => {
            let why = reply.degraded.iter().copied().find(degraded);
            Err(Internal::NoWorker(why))
        }
        (true, Some(worker)) => members.find(worker).map_err(Internal::Refused),
    };
    let workers = worker.map(|first| {
        let mut workers: SmallVec<[usize; 1]> = SmallVec::from_elem(first, 1);
        for next in reply
            .fallbacks
            .iter()
            .filter_map(|next| members.find(next).ok())
        {
            if !workers.contains(&next) {
                workers.push(next);
            }
        }
        workers
    });
    Resolution {
        rank: reply.dp_rank.filter(|_| workers.is_ok()),
        workers,
        tokens,
        count: reply.token_count.map(count),
        overlap: reply.overlap_tokens.map(count),
        is_uncached: reply.degraded.contains(&Degraded::CacheWrite),
    }
}

// === impl Members ===

impl<'a> Members<'a> {
    /// Of this table, those that are left of it.
    pub(crate) fn new(table: &'a Table, narrowed: &Narrowed) -> Self {
        Self {
            table,
            allowed: narrowed.candidates().map(|(member, _)| member).collect(),
        }
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.allowed.len()
    }

    /// The one of this address, or of the pod of this name and port.
    fn find(&self, worker: &str) -> Result<usize, RefusedWorker> {
        let roster = self.table.roster();
        let mut addresses = roster.addresses.iter();
        let member = match worker.parse::<SocketAddr>() {
            Ok(address) => addresses.position(|one| *one == address),
            Err(_) => worker.rsplit_once(':').and_then(|(pod, port)| {
                let port: u16 = port.parse().ok()?;
                let mut members = addresses.zip(&roster.pods);
                members.position(|(address, (_, name))| address.port() == port && **name == *pod)
            }),
        };
        let member = member.ok_or(RefusedWorker::NoMember)?;
        if self.allowed.binary_search(&member).is_ok() {
            return Ok(member);
        }
        Err(match self.table.quality.get(member) {
            Some(Quality::Suspect) => RefusedWorker::Suspect,
            _ => RefusedWorker::NotAllowed,
        })
    }
}

// === impl Internal ===

impl Internal {
    /// Stable, for metrics; none: it is no fallback.
    pub(crate) fn reason(self) -> Option<&'static str> {
        match self {
            Self::NotAsked => None,
            Self::NoWorker(Some(why)) => Some(why.reason()),
            Self::NoWorker(None) => Some("no-worker"),
            Self::Refused(why) => Some(why.label()),
        }
    }
}

// === impl RefusedWorker ===

impl Label for RefusedWorker {
    const ALL: &'static [Self] = &[Self::NoMember, Self::NotAllowed, Self::Suspect];

    fn label(self) -> &'static str {
        match self {
            Self::NoMember => "no-member",
            Self::NotAllowed => "not-allowed",
            Self::Suspect => "suspect",
        }
    }
}

#[cfg(test)]
mod tests;
