//! The order of service, and what blocked requests keep.

use super::*;
use crate::tests::request as base;

fn request(id: u64, tenant: u32, priority: u8, deadline: Option<u64>) -> Request {
    Request {
        tenant: Tenant(tenant),
        priority: Priority(priority),
        deadline: deadline.map(Duration::from_secs),
        ..base(id, 10, 5)
    }
}

fn drain(queue: &mut Queue) -> Vec<u64> {
    std::iter::from_fn(|| {
        let id = queue.next(|_| true)?.id;
        queue.admit(id, Time::ZERO, 0);
        Some(id.0)
    })
    .collect()
}

#[test]
fn priority_precedes_tenant_and_tenant_deadline() {
    let mut queue = Queue::default();
    queue.push(request(1, 1, 0, None));
    queue.push(request(2, 1, 0, Some(5)));
    queue.push(request(3, 1, 0, Some(900)));
    queue.push(request(4, 2, 0, Some(901)));
    queue.push(request(5, 2, 1, None));
    // 5 by priority; then tenant 1, which has had no service, with its earliest deadline; then both have had
    // one each, and so on in turns.
    assert_eq!(drain(&mut queue), [5, 2, 1, 4, 3]);
}

#[test]
fn tenants_alternate_whatever_their_queues() {
    let mut queue = Queue::default();
    for id in 0..50 {
        queue.push(request(id, 1, 0, None));
    }
    queue.push(request(50, 2, 0, None));
    queue.push(request(51, 3, 0, None));
    let order = drain(&mut queue);
    let position = |id| order.iter().position(|&other| other == id).unwrap();
    assert!(position(50) <= 2 && position(51) <= 2, "{order:?}");
}

#[test]
fn idling_earns_no_credit_and_pays_no_debt() {
    let mut queue = Queue::default();
    queue.push(request(0, 1, 0, None));
    drain(&mut queue);
    for _ in 0..100 {
        queue.charge_generated(Tenant(1));
    }
    // A new tenant starts level with the others, not two hundred tokens behind, and its admission does not
    // change that.
    queue.push(request(1, 2, 0, None));
    assert_eq!(queue.counter(Tenant(2)), 210);
    drain(&mut queue);
    assert_eq!(queue.counter(Tenant(2)), 220);
    // Tenant 1 gets into debt, becomes idle and returns: it is still in debt.
    for _ in 0..10 {
        queue.charge_generated(Tenant(1));
    }
    queue.stopped_running(Tenant(1));
    queue.push(request(2, 1, 0, None));
    queue.push(request(3, 2, 0, None));
    assert_eq!(queue.counter(Tenant(1)), 230);
    assert_eq!(drain(&mut queue), [3, 2]);
    for tenant in [1, 2, 2] {
        queue.stopped_running(Tenant(tenant));
    }
    assert_eq!(queue.tenants(), 0);
}

#[test]
fn idle_tenants_are_remembered_while_in_debt() {
    let mut queue = Queue::default();
    for tenant in 1..=4 {
        queue.push(request(u64::from(tenant), tenant, 0, None));
    }
    drain(&mut queue);
    for (tenant, tokens) in [(2, 5), (3, 20), (4, 5)] {
        (0..tokens).for_each(|_| queue.charge_generated(Tenant(tenant)));
        queue.stopped_running(Tenant(tenant));
    }
    assert_eq!(queue.tenants(), 4);
    assert_eq!(queue.counter(Tenant(3)), 50);
    // The active tenant catches up with two of them.
    (0..5).for_each(|_| queue.charge_generated(Tenant(1)));
    queue.push(request(9, 1, 0, None));
    queue.remove(RequestId(9));
    assert_eq!(queue.tenants(), 2);
    assert_eq!(
        (queue.counter(Tenant(2)), queue.counter(Tenant(3))),
        (0, 50)
    );
    // A returning tenant counts once.
    queue.push(request(10, 3, 0, None));
    assert_eq!((queue.tenants(), queue.counter(Tenant(3))), (2, 50));
    queue.stopped_running(Tenant(1));
    assert_eq!(queue.tenants(), 1);
}

#[test]
fn blocked_request_is_overtaken_by_priority_only() {
    let mut queue = Queue::default();
    queue.push(request(1, 1, 0, None));
    queue.block(RequestId(1));
    queue.charge_generated(Tenant(1));
    queue.push(request(2, 2, 0, None));
    assert_eq!(queue.next(|_| true).unwrap().id, RequestId(1));
    queue.push(request(3, 2, 1, None));
    assert_eq!(queue.next(|_| true).unwrap().id, RequestId(3));
    let others = |request: &Request| request.id != RequestId(1);
    assert_eq!(queue.next(others).unwrap().id, RequestId(3));
}

#[test]
fn tenant_with_several_running_is_overtaken_when_blocked() {
    let mut queue = Queue::default();
    for id in 1..=4 {
        queue.push(request(id, 1, 0, None));
    }
    for (running, next) in [(1, 4), (2, 5)] {
        queue.admit(RequestId(running), Time::ZERO, 0).unwrap();
        queue.block(RequestId(4));
        queue.push(request(5, 2, 0, None));
        assert_eq!(queue.next(|_| true).unwrap().id, RequestId(next));
        let running = [Tenant(1)].into_iter();
        let preempted = queue.tenant_to_preempt(Tenant(2), running);
        assert_eq!(preempted, (next == 5).then_some(Tenant(1)));
        queue.remove(RequestId(5));
    }
}

/// Two running requests of tenant 1, and a blocked one; tenants 2 and 3 run none.
fn blocked_queue() -> Queue {
    let mut queue = Queue::default();
    for id in 1..=3 {
        queue.push(request(id, 1, 0, None));
    }
    for id in 1..=2 {
        queue.admit(RequestId(id), Time::ZERO, 0).unwrap();
    }
    queue.block(RequestId(3));
    queue
}

#[test]
fn every_tenant_without_requests_may_overtake() {
    let mut queue = blocked_queue();
    queue.push(request(4, 2, 0, None));
    queue.admit(RequestId(4), Time::ZERO, 0).unwrap();
    // The first in the order of service belongs to a tenant that runs one. The second runs none.
    queue.push(request(5, 2, 0, None));
    queue.push(request(6, 3, 0, None));
    (0..6).for_each(|_| queue.charge_generated(Tenant(3)));
    (0..10).for_each(|_| queue.charge_generated(Tenant(1)));
    assert_eq!(queue.first(|_| true, |_| true).unwrap().id, RequestId(5));
    assert_eq!(queue.next(|_| true).unwrap().id, RequestId(6));
}

#[test]
fn blocked_request_is_next_after_those_that_overtake() {
    let ends: [fn(&mut Queue, RequestId) -> Option<Request>; 2] =
        [Queue::remove, |queue, id| queue.admit(id, Time::ZERO, 0)];
    for ends in ends {
        let mut queue = blocked_queue();
        // It overtakes, and finds no room either.
        queue.push(request(4, 2, 1, None));
        assert_eq!(queue.next(|_| true).unwrap().id, RequestId(4));
        queue.block(RequestId(4));
        // One of the same priority does not overtake it, whatever the counters.
        queue.push(request(5, 3, 1, None));
        queue.charge_generated(Tenant(2));
        queue.charge_generated(Tenant(2));
        assert_eq!(queue.next(|_| true).unwrap().id, RequestId(4));
        queue.remove(RequestId(5)).unwrap();
        ends(&mut queue, RequestId(4)).unwrap();
        // Tenant 3 runs a request and got less service.
        queue.push(request(6, 3, 0, None));
        queue.admit(RequestId(6), Time::ZERO, 0).unwrap();
        queue.push(request(7, 3, 0, None));
        (0..10).for_each(|_| queue.charge_generated(Tenant(1)));
        assert!(queue.counter(Tenant(3)) < queue.counter(Tenant(1)));
        assert_eq!(queue.next(|_| true).unwrap().id, RequestId(3));
    }
}

#[test]
fn sampling_time_counts_as_service() {
    let mut queue = Queue::default();
    for (id, tenant) in [(0, 1), (1, 2), (2, 1), (3, 2)] {
        queue.push(request(id, tenant, 0, None));
    }
    for id in [0, 1] {
        queue.admit(RequestId(id), Time::ZERO, 0);
    }
    queue.charge_sampling(Tenant(1), SAMPLING_PER_TOKEN * 3);
    assert_eq!(queue.counter(Tenant(1)), queue.counter(Tenant(2)) + 3);
    assert_eq!(drain(&mut queue), [3, 2]);
}
