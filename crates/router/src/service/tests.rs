use std::time::Duration;

use kv_router::{Limits, Load, Preset, WorkerBlocks};
use rand::{SeedableRng, rngs::StdRng};
use scheduling::Member;
use tokio::time::advance;

use super::*;
use crate::pool::{
    Changes,
    tests::{BLOCK, mk_member, mk_pool, store},
};

/// A service, and who else has something of its pool.
struct World {
    service: Service,
    blocks: Vec<WorkerBlocks>,
    rng: StdRng,
}

fn mk_request(ids: impl IntoIterator<Item = u32>) -> RouteRequest<'static> {
    RouteRequest {
        token_ids: ids.into_iter().collect(),
        ..RouteRequest::default()
    }
}

fn mk_members(count: u8) -> Vec<Member> {
    (0..count)
        .map(|at| mk_member(&format!("vllm-{at}"), "1", at, 0))
        .collect()
}

impl World {
    fn new(workers: u8) -> Self {
        Self::with(mk_members(workers), 1, |_| {})
    }

    fn with(members: Vec<Member>, ranks: u8, change: impl FnOnce(&mut Policy)) -> Self {
        let pool = Arc::new(mk_pool(Limits::default()));
        let Changes { added, .. } = pool.replace(&members, ranks);
        let mut policy = Policy {
            weights: Preset::Isthmus.weights(),
            temperature: 0.0,
            busy_tokens: None,
        };
        change(&mut policy);
        Self {
            service: Service::new(Parts {
                pool,
                policy,
                clock: Clock::start(),
                metrics: Metrics::default(),
                follows_events: true,
                routes: None,
            }),
            blocks: added.into_iter().flat_map(|(_, blocks)| blocks).collect(),
            rng: StdRng::seed_from_u64(5),
        }
    }

    fn now(&self) -> Moment {
        self.service.clock().now()
    }

    fn route(&mut self, request: &RouteRequest<'_>) -> Result<RouteReply, Fault> {
        let now = self.now();
        self.service.route(request, now, &mut self.rng)
    }

    /// A booking with a name, as the endpoint picker makes one.
    fn book(&mut self, ids: impl IntoIterator<Item = u32>) -> (ReservationId, RouteReply) {
        let id = ReservationId::random(&mut self.rng);
        let request = RouteRequest {
            reservation_id: Some(id),
            ..mk_request(ids)
        };
        (id, self.route(&request).unwrap())
    }

    /// What is to be done at 10.0.0.{host}:8000.
    fn load(&self, host: u8) -> Load {
        let table = self.service.pool().table();
        let worker = table.at(SocketAddr::from(([10, 0, 0, host], 8000)));
        let slot = worker.unwrap().ranks[0].slot;
        self.service
            .pool()
            .workers
            .loads
            .of(slot, self.now())
            .unwrap()
    }

    fn requests(&self) -> u32 {
        let table = self.service.pool().table();
        let of = |slot: &Slot| self.service.pool().workers.loads.of(*slot, self.now());
        table
            .slots()
            .iter()
            .filter_map(of)
            .map(|it| it.requests)
            .sum()
    }
}

#[tokio::test(start_paused = true)]
async fn a_reply_names_the_worker_and_what_it_has() {
    let mut world = World::new(3);
    store(
        world.service.pool(),
        &mut world.blocks[1],
        &(0..40).collect::<Vec<_>>(),
    );
    let request = RouteRequest {
        max_endpoints: Some(2),
        ..mk_request(0..43)
    };
    let reply = world.route(&request).unwrap();
    assert_eq!(reply.worker_address, "10.0.0.1:8000");
    assert_eq!(reply.worker_id.as_deref(), Some("default/vllm-1-rank-0"));
    assert_eq!((reply.overlap_blocks, reply.prompt_blocks), (10, 10));
    assert_eq!((reply.block_size, reply.dp_rank), (BLOCK, None));
    assert_eq!(reply.source, RouteSource::Exact);
    assert_eq!(reply.fallbacks.len(), 1);
    assert!(reply.reservation_id.is_some());
}

#[tokio::test(start_paused = true)]
async fn an_adapter_or_a_salt_shares_no_cache() {
    let mut world = World::new(1);
    store(
        world.service.pool(),
        &mut world.blocks[0],
        &(0..40).collect::<Vec<_>>(),
    );
    let overlap = |world: &mut World, change: fn(&mut RouteRequest<'_>)| {
        let mut request = mk_request(0..40);
        change(&mut request);
        world.route(&request).unwrap().overlap_blocks
    };
    assert_eq!(
        overlap(&mut world, |it| it.lora_name = Some("sql".into())),
        0
    );
    assert_eq!(
        overlap(&mut world, |it| it.cache_salt = Some("a".into())),
        0
    );
    // one model's adapters are told apart by their names alone
    assert_eq!(
        overlap(&mut world, |it| it.model = Some("llama".into())),
        10
    );
}

#[tokio::test(start_paused = true)]
async fn only_candidates_are_chosen_and_unknown_ones_are_none() {
    let mut world = World::new(4);
    store(
        world.service.pool(),
        &mut world.blocks[0],
        &(0..40).collect::<Vec<_>>(),
    );
    let mut named = |candidates: &[&'static str]| {
        let request = RouteRequest {
            candidates: Some(candidates.iter().map(|it| (*it).into()).collect()),
            max_endpoints: Some(9),
            ..mk_request(0..40)
        };
        world.route(&request)
    };
    let reply = named(&["10.0.0.2:8000", "10.0.0.9:8000", "x", "10.0.0.2:8000"]).unwrap();
    assert_eq!(reply.worker_address, "10.0.0.2:8000");
    assert_eq!(reply.fallbacks, Vec::<String>::new());
    for nobody in [&["10.0.0.9:8000"][..], &[]] {
        let fault = named(nobody).unwrap_err();
        assert_eq!((fault.status(), fault.reason()), (503, "no-workers"));
    }
}

#[tokio::test(start_paused = true)]
async fn ranks_behind_an_address_are_chosen_among_and_are_one_fallback() {
    let mut world = World::with(mk_members(2), 3, |_| {});
    store(
        world.service.pool(),
        &mut world.blocks[2],
        &(0..40).collect::<Vec<_>>(),
    );
    let request = RouteRequest {
        max_endpoints: Some(5),
        ..mk_request(0..40)
    };
    let reply = world.route(&request).unwrap();
    assert_eq!(
        (reply.worker_address.as_str(), reply.dp_rank),
        ("10.0.0.0:8000", Some(2))
    );
    assert_eq!(reply.fallbacks, ["10.0.0.1:8000"]);
}

#[tokio::test(start_paused = true)]
async fn a_hundred_equal_prompts_are_computed_once_by_each_chosen_worker() {
    let mut world = World::new(8);
    let ids = 40_000;
    let mut chosen = std::collections::BTreeSet::new();
    let mut computed = 0;
    for number in 0..100 {
        let (_, reply) = world.book(0..ids);
        let is_new = chosen.insert(reply.worker_address);
        let expected = if is_new { 0 } else { reply.prompt_blocks };
        assert_eq!(reply.overlap_blocks, expected, "prompt {number}");
        computed += u64::from(is_new) * u64::from(ids);
    }
    let prefill: u64 = (0..8).map(|host| world.load(host).prefill_tokens).sum();
    assert_eq!(prefill, computed);
}

#[tokio::test(start_paused = true)]
async fn an_hour_of_keepalives_keeps_a_booking_and_a_minute_of_silence_ends_it() {
    let mut world = World::new(1);
    let (id, _) = world.book(0..40);
    let message = Keepalive {
        reservation_ids: vec![id],
    };
    for _ in 0..240 {
        advance(Duration::from_secs(15)).await;
        world.service.expire();
        world.service.keepalive(&message, world.now()).unwrap();
    }
    assert_eq!(world.requests(), 1);
    advance(Duration::from_secs(59)).await;
    world.service.expire();
    assert_eq!(world.requests(), 1);
    advance(Duration::from_secs(1)).await;
    world.service.expire();
    assert_eq!(world.requests(), 0);
    let gone = world.service.keepalive(&message, world.now());
    assert_eq!(gone, Err(Fault::UnknownReservation));
}

#[tokio::test(start_paused = true)]
async fn an_end_that_comes_first_keeps_its_booking_out_for_ten_seconds() {
    let mut world = World::new(1);
    let id = ReservationId::random(&mut world.rng);
    let ended = world.service.free(id.as_str(), world.now());
    assert_eq!(ended, Err(Fault::UnknownReservation));
    let request = RouteRequest {
        reservation_id: Some(id),
        ..mk_request(0..40)
    };
    advance(Duration::from_secs(9)).await;
    let reply = world.route(&request).unwrap();
    assert_eq!((reply.reservation_id, world.requests()), (None, 0));
    advance(Duration::from_secs(1)).await;
    let reply = world.route(&request).unwrap();
    assert_eq!((reply.reservation_id, world.requests()), (Some(id), 1));
}

#[tokio::test(start_paused = true)]
async fn what_another_worker_served_is_booked_there() {
    let mut world = World::new(2);
    let (id, reply) = world.book(0..40);
    let (chosen, other) = if reply.worker_address == "10.0.0.0:8000" {
        (0, 1)
    } else {
        (1, 0)
    };
    let served = format!("10.0.0.{other}:8000");
    let now = world.now();
    world
        .service
        .prefill_complete(id.as_str(), &served, now)
        .unwrap();
    assert_eq!(world.load(chosen), Load::default());
    let moved = Load {
        prefill_tokens: 0,
        decode_blocks: 10,
        requests: 1,
    };
    assert_eq!(world.load(other), moved);
    // It has the prompt now.
    let request = RouteRequest {
        candidates: Some(vec![served.clone().into()]),
        ..mk_request(0..40)
    };
    let next = world.route(&request).unwrap();
    assert_eq!(
        (next.overlap_blocks, next.source),
        (10, RouteSource::Predicted)
    );
    world.service.free(id.as_str(), now).unwrap();
    let gone = world
        .service
        .prefill_complete(id.as_str(), "10.0.0.0:8000", now);
    assert_eq!(gone, Err(Fault::UnknownReservation));
}

#[tokio::test(start_paused = true)]
async fn the_rank_that_was_chosen_stays_when_its_address_served() {
    let mut world = World::with(mk_members(1), 2, |_| {});
    store(
        world.service.pool(),
        &mut world.blocks[1],
        &(0..40).collect::<Vec<_>>(),
    );
    let (id, reply) = world.book(0..40);
    assert_eq!(reply.dp_rank, Some(1));
    let loads = &world.service.pool().workers.loads;
    let booked = loads.slot_of(id.as_str());
    let now = world.now();
    let complete = |address| world.service.prefill_complete(id.as_str(), address, now);
    complete("10.0.0.0:8000").unwrap();
    assert_eq!(loads.slot_of(id.as_str()), booked);
    // of no worker: as chosen
    complete("elsewhere:80").unwrap();
    assert_eq!(loads.slot_of(id.as_str()), booked);
}

#[tokio::test(start_paused = true)]
async fn busy_workers_get_nothing_and_then_nobody_does() {
    let mut world = World::with(mk_members(2), 1, |it| it.busy_tokens = Some(100));
    for first in [0, 1000] {
        world.book(first..first + 101);
    }
    let fault = world.route(&mk_request(5000..5010)).unwrap_err();
    assert_eq!((fault.status(), fault.reason()), (429, "saturated"));
}

#[tokio::test(start_paused = true)]
async fn a_caller_without_names_weighs_less_with_time() {
    let mut world = World::new(1);
    world.route(&mk_request(0..20_000)).unwrap();
    assert_eq!(world.load(0).prefill_tokens, 20_000);
    advance(Duration::from_secs(1)).await;
    assert_eq!(world.load(0).prefill_tokens, 10_000);
    world.book(50_000..60_000);
    advance(Duration::from_secs(1)).await;
    assert_eq!(world.load(0).prefill_tokens, 10_000);
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_is_gone_takes_its_bookings_along() {
    let mut world = World::new(2);
    let (id, reply) = world.book(0..40);
    let gone = reply.worker_address.clone();
    let left: Vec<_> = mk_members(2)
        .into_iter()
        .filter(|it| it.address.to_string() != gone)
        .collect();
    let changes = world.service.pool().replace(&left, 1);
    let slot = changes.removed[0].ranks[0].slot;
    let at = world
        .blocks
        .iter()
        .position(|it| it.slot() == slot)
        .unwrap();
    let blocks = world.blocks.remove(at);
    world.service.pool().workers.remove(blocks);
    assert_eq!(world.service.pool().workers.loads.bookings(), 0);
    let now = world.now();
    let unknown = world.service.free(id.as_str(), now);
    assert_eq!(unknown, Err(Fault::UnknownReservation));
    let reply = world.route(&mk_request(0..40)).unwrap();
    assert_ne!(reply.worker_address, gone);
    assert_eq!(reply.overlap_blocks, 0);
}
