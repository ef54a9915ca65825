//! Deployments: what is kept of them, what serves, and how one becomes the other.
//!
//! [`Store`] keeps components and revisions and knows nothing of HTTP or of plugins; [`Manifest`] is how
//! an author describes a deployment. [`Deployments`] is what serves: a table that requests read and
//! changes replace as a whole. A change is validated and compiled beside the serving path, written to the
//! store, and then swapped in; a request holds on to the revision that it found, so it ends on the old
//! one, which is freed with the last of its requests.

mod bounded;
mod capacity;
mod change;
mod digest;
#[cfg(test)]
mod fixture;
mod links;
mod load;
mod manifest;
mod name;
mod restore;
mod revision;
mod serving;
mod slow;
mod store;
mod tally;

pub use bounded::{Seconds, Whole};
pub(crate) use change::ChangeError;
pub use digest::{Digest, DigestError};
pub use links::{Link, Links, check_sampler};
pub use manifest::{Grants, MANIFEST_SCHEMA, Manifest, ManifestError, RequestedLimits};
pub use name::{Name, NameError};
pub use revision::{Record, Revision, Share, WEIGHT};
pub use serving::Deployments;
pub(crate) use serving::{NotServing, Part, Served};
pub use store::{Bounds, Kept, Store, StoreError};
