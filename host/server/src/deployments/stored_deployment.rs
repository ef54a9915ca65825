//! What a store holds under a deployment's name, and what each change makes of it. Knows no store.

use super::artifact::ArtifactReference;
use super::digest::Digest;
use super::manifest::Manifest;
use super::name::DeploymentName;
use super::revision::{DeploymentRecord, MAX_WEIGHT, Revision, TrafficShare};
use super::store::StoreError;
use crate::clock::now_ms;
use std::collections::{BTreeMap, BTreeSet};

/// A deployment in a store.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredDeployment {
    /// Its mutable state.
    pub record: DeploymentRecord,
    /// Its revisions, by number.
    pub revisions: BTreeMap<u64, Revision>,
}

/// What a store holds under a name: a deployment, or what remains of a removed one.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Entry {
    /// Number of this state within its store, which grows with each change; 0 if the name was never used.
    pub version: u64,
    /// Number of the latest revision, also of a removed deployment.
    pub latest_revision: u64,
    /// Number of the first revision since the deployment was created. Embedded stores do not keep it.
    pub first_revision: u64,
    /// The deployment, if it exists.
    pub deployment: Option<StoredDeployment>,
}

/// A revision without a number.
#[derive(Clone, Debug)]
pub struct NewRevision {
    /// Digest of the component.
    pub component: Digest,
    /// Size of the component.
    pub component_bytes: u64,
    /// The artifact that it is deployed from.
    pub source: Option<ArtifactReference>,
    /// The manifest, which names all components by digest.
    pub manifest: Manifest,
}

impl Entry {
    /// The deployment, which must exist.
    pub(crate) fn existing(&self, name: &DeploymentName) -> Result<&StoredDeployment, StoreError> {
        let deployment = self.deployment.as_ref();
        deployment.ok_or_else(|| StoreError::NoDeployment(name.clone()))
    }

    fn existing_mut(&mut self, name: &DeploymentName) -> Result<&mut StoredDeployment, StoreError> {
        let deployment = self.deployment.as_mut();
        deployment.ok_or_else(|| StoreError::NoDeployment(name.clone()))
    }

    /// Adds a revision. With `activate`, or as the first of its deployment, it receives all requests. Drops the oldest
    /// revisions above `max_revisions`, except those in use.
    pub fn deploy(&mut self, new: NewRevision, activate: bool, max_revisions: usize) -> Revision {
        let number = self.latest_revision + 1;
        let revision = Revision {
            number,
            component: new.component,
            component_bytes: new.component_bytes,
            created_ms: now_ms(),
            source: new.source,
            manifest: new.manifest,
        };
        self.latest_revision = number;
        let all = || vec![TrafficShare::all(number)];
        let first_revision = &mut self.first_revision;
        let deployment = self.deployment.get_or_insert_with(|| {
            *first_revision = number;
            StoredDeployment {
                record: DeploymentRecord {
                    latest_revision: number,
                    traffic: all(),
                    previous_traffic: Vec::new(),
                    paused: false,
                },
                revisions: BTreeMap::new(),
            }
        });
        deployment.record.latest_revision = number;
        if activate {
            deployment.record.set_traffic(all());
        }
        deployment.revisions.insert(number, revision.clone());
        drop_old_revisions(deployment, max_revisions);
        revision
    }

    /// Distributes the deployment's requests among its revisions.
    pub fn set_traffic(
        &mut self,
        name: &DeploymentName,
        traffic: Vec<TrafficShare>,
    ) -> Result<(), StoreError> {
        let deployment = self.existing_mut(name)?;
        check_traffic(name, deployment, &traffic)?;
        deployment.record.set_traffic(traffic);
        Ok(())
    }

    /// Pauses or resumes the deployment.
    pub fn set_paused(&mut self, name: &DeploymentName, paused: bool) -> Result<(), StoreError> {
        self.existing_mut(name)?.record.paused = paused;
        Ok(())
    }

    /// Removes the deployment with all its revisions. A later one of the same name continues their numbers.
    pub fn remove(&mut self, name: &DeploymentName) -> Result<(), StoreError> {
        self.existing(name)?;
        self.deployment = None;
        Ok(())
    }
}

/// Checks that `traffic` names existing revisions, with valid weights.
pub(crate) fn check_traffic(
    name: &DeploymentName,
    deployment: &StoredDeployment,
    traffic: &[TrafficShare],
) -> Result<(), StoreError> {
    let invalid = |message: String| Err(StoreError::InvalidTraffic(message));
    if traffic.is_empty() {
        return invalid("no revision is given; name at least one".to_owned());
    }
    let mut seen = BTreeSet::new();
    for share in traffic {
        let revision = share.revision;
        if !deployment.revisions.contains_key(&revision) {
            return Err(StoreError::NoRevision {
                name: name.clone(),
                revision,
                existing: Vec::from_iter(deployment.revisions.keys().copied()),
            });
        }
        if !(1..=MAX_WEIGHT).contains(&share.weight) {
            return invalid(format!(
                "revision {revision} has the weight {}; give 1 to {MAX_WEIGHT}, or omit the revision",
                share.weight
            ));
        }
        if !seen.insert(revision) {
            return invalid(format!(
                "revision {revision} is given twice; name each once"
            ));
        }
    }
    Ok(())
}

/// Drops the oldest revisions until `limit` are left, except the latest and those in current or previous
/// traffic.
fn drop_old_revisions(deployment: &mut StoredDeployment, limit: usize) {
    let record = &deployment.record;
    let shares = record.traffic.iter().chain(&record.previous_traffic);
    let needed: BTreeSet<_> = shares
        .map(|share| share.revision)
        .chain([record.latest_revision])
        .collect();
    let surplus = deployment.revisions.len().saturating_sub(limit);
    let dropped: Vec<_> = deployment
        .revisions
        .keys()
        .filter(|number| !needed.contains(number))
        .take(surplus)
        .copied()
        .collect();
    for number in dropped {
        deployment.revisions.remove(&number);
    }
}
