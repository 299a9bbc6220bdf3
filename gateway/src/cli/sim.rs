//! `tidegate sim`: a plant of Modbus devices from a description, obeying lines of standard input.

use std::io::{BufRead, IsTerminal};
use std::path::Path;

use tidegate_config::{Problems, ProcessEnvironment, load_other, read_sources};
use tidegate_drivers::sim::{Command, Sim, SimDoc};
use tidegate_drivers::types::Span;
use tokio::sync::mpsc;

use super::CONFIG_REFUSED;
use super::check::fail;
use crate::cli::print::say;

/// Commands that are read ahead.
const LINES_MAX: usize = 16;

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
    let code = runtime.block_on(serve(document, lasting));
    runtime.shutdown_background();
    code
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
    for (name, place) in sim.places() {
        say!("{name} listens on {place}");
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
        () = obey(&sim, lines()) => {}
    }
    let served = sim.stop().await;
    match serde_json::to_string(&served) {
        Ok(text) => say!("{text}"),
        Err(error) => return fail(error),
    }
    0
}

/// Does what the lines say; waits for ever after the last one.
async fn obey(sim: &Sim, mut lines: mpsc::Receiver<String>) {
    while let Some(line) = lines.recv().await {
        if line.trim().is_empty() {
            continue;
        }
        let done = match line.parse::<Command>() {
            Ok(command) => sim.obey(command).await.map_err(|fault| fault.to_string()),
            Err(error) => Err(error.to_string()),
        };
        match done {
            Ok(text) => say!("{text}"),
            Err(text) => eprintln!("{text}"),
        }
    }
    std::future::pending::<()>().await;
}

/// The lines of standard input; none for a job in the background, which the terminal would stop
/// for reading.
fn lines() -> mpsc::Receiver<String> {
    let (tx, rx) = mpsc::channel(LINES_MAX);
    let stdin = std::io::stdin();
    let background = stdin.is_terminal()
        && rustix::termios::tcgetpgrp(&stdin).ok() != Some(rustix::process::getpgrp());
    if !background {
        // A read from standard input cannot be cancelled: the thread ends with the process.
        std::thread::spawn(move || {
            for line in std::io::stdin().lock().lines() {
                let Ok(line) = line else { return };
                if tx.blocking_send(line).is_err() {
                    return;
                }
            }
        });
    }
    rx
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What stands in `board-configs/sim` for `tidegate sim`, and all that can be written there.
    #[test]
    fn the_plants_of_this_repository_load() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../board-configs/sim");
        for (file, servers, faults) in [("plant.yaml", 2, 0), ("faults.yaml", 3, 26)] {
            let document = read(&folder.join(file)).unwrap_or_else(|e| panic!("{file}: {e}"));
            assert_eq!(document.problems(), [], "{file}");
            let scripted: usize = document.servers.iter().map(|s| s.faults.len()).sum();
            assert_eq!((document.servers.len(), scripted), (servers, faults), "{file}");
        }
    }
}
