//! `tidegate sim`: a plant of Modbus devices from a description.

use std::path::Path;

use tidegate_config::{Problems, ProcessEnvironment, load_other, read_sources};
use tidegate_drivers::sim::{Sim, SimDoc};
use tidegate_drivers::types::Span;

use super::CONFIG_REFUSED;
use super::check::fail;
use crate::cli::print::say;

/// Serves the plant until Ctrl-C, or for so long; then prints what it served as JSON.
pub fn sim(plant: &Path, lasting: Option<Span>) -> u8 {
    let document = match read(plant) {
        Ok(document) => document,
        Err(problems) => {
            eprint!("{}", problems.human());
            return CONFIG_REFUSED;
        }
    };
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return fail(error),
    };
    runtime.block_on(serve(document, lasting))
}

fn read(plant: &Path) -> Result<SimDoc, Problems> {
    let sources = read_sources(plant)?;
    // A plant is one file: `read_sources` gives at least one.
    let (document, _) = load_other(&sources[0], &ProcessEnvironment)?;
    Ok(document)
}

async fn serve(document: SimDoc, lasting: Option<Span>) -> u8 {
    let sim = match Sim::start(document).await {
        Ok(sim) => sim,
        Err(fault) => return fail(fault),
    };
    for (name, address) in sim.addrs() {
        say!("{name} listens on {address}");
    }
    let end = async {
        match lasting {
            Some(span) => tokio::time::sleep(span.duration()).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        () = end => {}
        result = tokio::signal::ctrl_c() => {
            if let Err(error) = result {
                return fail(format_args!("cannot catch Ctrl-C: {error}"));
            }
        }
    }
    let served = sim.stop().await;
    match serde_json::to_string(&served) {
        Ok(text) => say!("{text}"),
        Err(error) => return fail(error),
    }
    0
}
