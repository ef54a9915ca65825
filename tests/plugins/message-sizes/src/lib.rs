//! Handles messages, and no HTTP requests: logs their sizes.

use corral_sdk::{Error, messages::Message};

corral_sdk::message_handler!(audit);

async fn audit(message: Message) -> Result<(), Error> {
    println!("{} has {} bytes", message.subject, message.body.len());
    Ok(())
}
