//! Preemption: running requests that give their cells to others.
//!
//! If a step lacks cells, the least important request is preempted: the latest arrival of the lowest priority. A waiting
//! request preempts only requests of lower priority, with one exception: if its tenant runs none, it may preempt one of
//! the same priority. That is the latest one of the tenant with the most service, among the tenants that run several
//! requests and got no less service than its own.
//!
//! The preempted request returns to the queue with its generated tokens. Its state is swapped out, or computed again,
//! whichever is expected to be faster. No admitted request is lost, and the most important one always makes progress.

use crate::prefix_cache::EntryState;
use crate::request::{Priority, Tenant, length};
use crate::retention::Retention;
use crate::running::RunningRequest;
use crate::scheduler::Scheduler;
use std::collections::BTreeSet;

impl Scheduler {
    /// Preempts the least important request with computed tokens, if another one stays.
    pub(crate) fn preempt_least_important(&mut self) -> bool {
        self.running.len() > 1 && self.preempt_least_important_of(|running| running.computed > 0)
    }

    /// Preempts a request for a waiting one of this priority and tenant, as the module says. False if there is none to
    /// preempt.
    pub(crate) fn preempt_for(&mut self, priority: Priority, tenant: Tenant) -> bool {
        if self.preempt_least_important_of(|running| running.request.priority < priority) {
            return true;
        }
        let equal = self.running.iter().map(|running| &running.request);
        let equal = equal.filter(|request| request.priority == priority);
        let tenants = equal.map(|request| request.tenant);
        let most = self.queue.tenant_to_preempt(tenant, tenants);
        most.is_some_and(|most| {
            self.preempt_least_important_of(|running| {
                running.request.tenant == most && running.request.priority == priority
            })
        })
    }

    /// Preempts requests of quota groups that outgrew their quota.
    pub(crate) fn enforce_quotas(&mut self) {
        let quotas = self.running.iter().filter_map(|one| one.request.quota);
        let groups: BTreeSet<_> = quotas.map(|quota| quota.group).collect();
        for group in groups {
            loop {
                let own = self.running.iter().filter(|one| one.is_in_group(group));
                let held: u32 = own.clone().map(|one| length(one.tokens())).sum();
                let quotas = own.clone().filter_map(|one| one.request.quota);
                let cells = quotas.map(|quota| quota.cells).max().unwrap_or(0);
                let outgrown = own.count() > 1 && held > cells;
                if !outgrown || !self.preempt_least_important_of(|one| one.is_in_group(group)) {
                    break;
                }
            }
        }
    }

    /// Preempts the least important of the requests that pass `filter`. False if there are none.
    pub(crate) fn preempt_least_important_of(
        &mut self,
        filter: impl Fn(&RunningRequest) -> bool,
    ) -> bool {
        let least = self.running.least_important(filter);
        let Some(mut running) = least.and_then(|id| self.running.remove(id)) else {
            return false;
        };
        self.remove_from_prefix_tree(&running);
        running.save_progress();
        let swap = self.config.swap && self.kv.swap_is_faster(&self.costs, running.computed);
        let RunningRequest {
            mut request,
            seq,
            computed,
            ..
        } = running;
        request.progress.preempted += 1;
        if swap && computed > 0 && self.config.prefix_cache {
            let retention = Retention::default();
            let tokens = request.tokens[..computed as usize].to_vec();
            let state = EntryState::Resident(seq);
            let entries = &mut self.kv.entries;
            let entry = entries.insert(request.scope, tokens, state, retention.downgrade());
            self.kv.swap_out(entry, seq);
            request.continued = Some(retention);
        }
        self.kv.release(seq);
        self.preempted += 1;
        self.timers.drop_queue_time(&mut request);
        let tenant = request.tenant;
        self.queue.push(request);
        self.queue.stopped_running(tenant);
        // Its followers wait for a prefix that it no longer computes. They get another source at once; otherwise it
        // could return and follow one of them.
        self.update_followers();
        true
    }
}
