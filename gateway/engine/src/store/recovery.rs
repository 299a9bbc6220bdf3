//! From whatever lies in the folder to a store that works.
//!
//! A new file is made under another name, synced, renamed, and the folder synced, so that no crash
//! leaves half a file. A file that cannot be opened is kept under another name and replaced. One
//! that opens and turns out broken inside gives up its readable records to a new file. State that
//! failed its check is rebuilt from the rows; where progress is lost the epoch grows, so that no id
//! is given twice. Knows no queue and no commit.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;

use redb::{Builder, Database, ReadOnlyTable, ReadableDatabase, TableDefinition};

use super::border::{Layout, Recovery, StoreError, StoreOptions, StreamProgress};
use super::damage::{Damage, Trouble, contained};
use super::disk::{Counted, Disk, Traffic};
use super::format::{
    FORMAT, Kind, Meta, NAME_BYTES_MAX, SinkState, TableState, decode_progress, encode_progress,
    key, seal, split_key, unseal,
};
use super::log::{self, Schemas};
use super::outbox::{self, Records};
use super::rows::decode_schema;
use super::salvage::salvage;

/// The store's file.
pub(super) const LIVE: &str = "store.redb";
pub(super) const NEW: &str = "store.redb.new";
const LOCK: &str = "store.lock";
const EPOCH: &str = "store.epoch";
/// Broken files that are kept; after that the newest takes the last place.
const QUARANTINES_MAX: u32 = 4;

/// The one tree.
pub(super) const RECORDS: TableDefinition<'static, &'static [u8], &'static [u8]> =
    TableDefinition::new("records");

/// The tree, open for reading.
pub(super) type ReadRecords = ReadOnlyTable<&'static [u8], &'static [u8]>;

/// The folder, locked, and how to open the tree in it.
#[derive(Debug)]
pub(super) struct Files {
    pub(super) disk: Arc<dyn Disk>,
    pub(super) traffic: Arc<Traffic>,
    cache_bytes: usize,
    _lock: Box<dyn std::fmt::Debug + Send>,
}

impl Files {
    /// Opens the live file again, after an error or a salvage.
    pub(super) fn open_live(&self) -> Result<Database, Trouble> {
        self.open(LIVE, false)
    }

    /// Opens a file of the folder as a tree; with `create`, an empty one.
    pub(super) fn open(&self, name: &str, create: bool) -> Result<Database, Trouble> {
        contained(|| {
            let inner = self.disk.open(name, create).map_err(redb::Error::Io)?;
            let traffic = Arc::clone(&self.traffic);
            let backend = Counted { inner, traffic };
            Ok(Builder::new().set_cache_size(self.cache_bytes).create_with_backend(backend)?)
        })
    }
}

/// Everything small that the store knows, as of one commit.
#[derive(Debug, Clone)]
pub(super) struct State {
    pub(super) meta: Meta,
    pub(super) sinks: BTreeMap<Arc<str>, SinkState>,
    pub(super) tables: BTreeMap<Arc<str>, TableState>,
    pub(super) progress: BTreeMap<Arc<str>, Arc<StreamProgress>>,
    pub(super) schemas: BTreeMap<Arc<str>, Schemas>,
}

impl State {
    /// Bytes of log values, waiting rows and dead letters.
    pub(super) fn held_bytes(&self) -> u64 {
        let sinks: u64 = self.sinks.values().map(|sink| sink.bytes + sink.letter_bytes).sum();
        sinks + self.tables.values().map(|table| table.bytes).sum::<u64>()
    }

    /// Writes every state record, whatever was stored.
    pub(super) fn put_all(&self, records: &mut Records<'_>) -> Result<(), Trouble> {
        put(records, Kind::Meta, "", &self.meta.encode())?;
        for (name, sink) in &self.sinks {
            put(records, Kind::Sink, name, &sink.encode())?;
        }
        for (name, table) in &self.tables {
            put(records, Kind::Table, name, &table.encode())?;
        }
        for (name, progress) in &self.progress {
            put(records, Kind::Progress, name, &encode_progress(progress))?;
        }
        Ok(())
    }
}

/// Writes one state record.
pub(super) fn put(
    records: &mut Records<'_>,
    kind: Kind,
    name: &str,
    body: &[u8],
) -> Result<(), Trouble> {
    let at = key(kind, name, 0);
    records.insert(at.as_slice(), seal(&at, body).as_slice())?;
    Ok(())
}

/// A store that works, and what it took.
#[derive(Debug)]
pub(super) struct Opened {
    pub(super) files: Files,
    pub(super) db: Database,
    pub(super) state: State,
    pub(super) damage: Damage,
    pub(super) recovery: Recovery,
}

/// Opens, repairs or makes the store.
pub(super) fn open(
    disk: &Arc<dyn Disk>,
    options: &StoreOptions,
    layout: &Layout,
) -> Result<Opened, StoreError> {
    check_names(layout)?;
    let lock = disk.lock(LOCK).map_err(|error| io_error(&**disk, LOCK, error))?;
    let Some(lock) = lock else {
        return Err(StoreError::Locked { path: disk.path(LOCK) });
    };
    let traffic = Arc::default();
    let files =
        Files { disk: Arc::clone(disk), traffic, cache_bytes: options.cache_bytes, _lock: lock };
    let mut damage = Damage::new(Arc::clone(disk));
    let mut recovery = Recovery::default();
    disk.remove(NEW).map_err(|error| io_error(&**disk, NEW, error))?;

    let db = open_or_make(&files, options, &mut recovery)?;
    refuse_newer(&files, &db, &mut damage)?;
    let loaded = contained(|| load(&db, layout, &mut damage));
    let (db, loaded) = match loaded {
        Ok(loaded) => (db, loaded),
        Err(Trouble::Damaged(reason)) => {
            tracing::error!(reason, "the store's file is broken inside; carrying over the rest");
            let (db, moved) = salvage(&files, db, &mut damage).map_err(|t| failed(&files, &t))?;
            recovery.salvaged = true;
            recovery.quarantined = Some(moved);
            let loaded = contained(|| load(&db, layout, &mut damage));
            (db, loaded.map_err(|trouble| failed(&files, &trouble))?)
        }
        Err(trouble) => return Err(failed(&files, &trouble)),
    };
    let state = settle_epoch(&files, &db, loaded, options, &mut recovery)?;
    recovery.corrupt_records = damage.records;
    recovery.unclaimed = unclaimed(&state, layout);
    Ok(Opened { files, db, state, damage, recovery })
}

pub(super) fn check_names(layout: &Layout) -> Result<(), StoreError> {
    let tables = layout.tables.iter().map(|table| &table.name);
    let streams = layout.tables.iter().flat_map(|table| &table.readers);
    let names = tables.chain(streams).chain(layout.sinks.iter().map(|sink| &sink.name));
    for name in names {
        if name.len() > NAME_BYTES_MAX {
            return Err(StoreError::Unknown(format!("name of {} bytes", name.len())));
        }
    }
    Ok(())
}

fn io_error(disk: &dyn Disk, name: &str, error: io::Error) -> StoreError {
    StoreError::Io { path: disk.path(name), source: Arc::new(error) }
}

fn failed(files: &Files, trouble: &Trouble) -> StoreError {
    StoreError::Unreadable { path: files.disk.path(LIVE), reason: trouble.text().to_owned() }
}

/// Opens the live file; makes one where there is none or where it cannot be opened.
fn open_or_make(
    files: &Files,
    options: &StoreOptions,
    recovery: &mut Recovery,
) -> Result<Database, StoreError> {
    let disk = &*files.disk;
    let length = disk.length(LIVE).map_err(|error| io_error(disk, LIVE, error))?;
    let Some(length) = length else {
        recovery.created = true;
        return make(files, options, None);
    };
    // An empty file would be taken for a new one by redb; ours are never published empty.
    let opened = if length == 0 {
        Err(Trouble::Damaged("the file is empty".to_owned()))
    } else {
        files.open_live()
    };
    match opened {
        Ok(db) => Ok(db),
        Err(Trouble::Damaged(reason)) => {
            let aside = quarantine_name(disk)?;
            let path = disk.path(&aside);
            tracing::error!(reason, moved_to = %path.display(), "the store cannot be opened");
            recovery.created = true;
            recovery.quarantined = Some(path);
            make(files, options, Some(&aside))
        }
        Err(trouble) => Err(failed(files, &trouble)),
    }
}

/// A later version's file is left alone. Damage is met when the file is loaded.
fn refuse_newer(files: &Files, db: &Database, damage: &mut Damage) -> Result<(), StoreError> {
    match contained(|| read_meta(db, damage)) {
        Ok(Some(meta)) if meta.format > FORMAT => Err(StoreError::NewerFormat {
            path: files.disk.path(LIVE),
            found: meta.format,
            known: FORMAT,
        }),
        _ => Ok(()),
    }
}

pub(super) fn quarantine_name(disk: &dyn Disk) -> Result<String, StoreError> {
    let name = |number| format!("{LIVE}.quarantine-{number}");
    for number in 1..QUARANTINES_MAX {
        let taken = disk.length(&name(number)).map_err(|e| io_error(disk, LIVE, e))?;
        if taken.is_none() {
            return Ok(name(number));
        }
    }
    Ok(name(QUARANTINES_MAX))
}

/// Makes a store under another name, complete and synced, and puts it in place.
fn make(
    files: &Files,
    options: &StoreOptions,
    aside: Option<&str>,
) -> Result<Database, StoreError> {
    let disk = &*files.disk;
    let epoch = next_epoch(disk, options.epoch_hint, 0)?;
    let meta = Meta { format: FORMAT, epoch, commit: 0, gateway: options.gateway.clone() };
    let written = files.open(NEW, true).and_then(|db| {
        write(&db, |records| put(records, Kind::Meta, "", &meta.encode()))?;
        contained(|| db.close().map_err(Trouble::from))
    });
    written.map_err(|trouble| failed(files, &trouble))?;
    disk.publish(NEW, LIVE, aside).map_err(|error| io_error(disk, LIVE, error))?;
    files.open_live().map_err(|trouble| failed(files, &trouble))
}

/// Takes an epoch above every one that this folder has seen, and notes it durably first.
fn next_epoch(disk: &dyn Disk, hint: u64, known: u64) -> Result<u64, StoreError> {
    let noted = disk.read(EPOCH).map_err(|error| io_error(disk, EPOCH, error))?;
    let noted = noted.and_then(|bytes| std::str::from_utf8(&bytes).ok()?.trim().parse().ok());
    let epoch = hint.max(noted.unwrap_or(0).max(known).saturating_add(1));
    disk.write(EPOCH, format!("{epoch}\n").as_bytes())
        .map_err(|error| io_error(disk, EPOCH, error))?;
    Ok(epoch)
}

/// Runs one durable transaction of its own.
pub(super) fn write(
    db: &Database,
    work: impl FnOnce(&mut Records<'_>) -> Result<(), Trouble>,
) -> Result<(), Trouble> {
    contained(|| {
        let txn = db.begin_write()?;
        let mut records = txn.open_table(RECORDS)?;
        work(&mut records)?;
        drop(records);
        Ok(txn.commit()?)
    })
}

/// The tree as of the last commit.
pub(super) fn records(db: &Database) -> Result<ReadRecords, Trouble> {
    Ok(db.begin_read()?.open_table(RECORDS)?)
}

/// The record that counts commits, if it passes its check.
pub(super) fn read_meta(db: &Database, damage: &mut Damage) -> Result<Option<Meta>, Trouble> {
    let at = key(Kind::Meta, "", 0);
    let Some(value) = records(db)?.get_owned(at.as_slice())? else {
        return Ok(None);
    };
    let meta = unseal(&at, value.value()).and_then(Meta::decode);
    if meta.is_none() {
        damage.bad(&at, value.value());
    }
    Ok(meta)
}

/// What the file says, and what it no longer says.
struct Loaded {
    state: State,
    meta_lost: bool,
    progress_lost: Vec<String>,
    rebuilt: bool,
}

fn load(db: &Database, layout: &Layout, damage: &mut Damage) -> Result<Loaded, Trouble> {
    let meta = read_meta(db, damage)?;
    let meta_lost = meta.is_none();
    let meta = meta.unwrap_or(Meta { format: FORMAT, epoch: 0, commit: 0, gateway: String::new() });
    let records = records(db)?;
    let mut bad = BTreeSet::new();
    let sinks = states(&records, Kind::Sink, damage, &mut bad, |_, body| SinkState::decode(body))?;
    let tables =
        states(&records, Kind::Table, damage, &mut bad, |_, body| TableState::decode(body))?;
    let progress = states(&records, Kind::Progress, damage, &mut bad, |name, body| {
        decode_progress(Arc::from(name), body).map(Arc::new)
    })?;
    let schemas = load_schemas(&records, damage)?;
    let mut state = State { meta, sinks, tables, progress, schemas };
    let progress_lost = bad
        .iter()
        .filter(|(kind, _)| *kind == Kind::Progress as u8)
        .map(|(_, name)| name.clone())
        .collect();
    let rebuilt = rebuild(&records, &mut state, layout, &bad, damage)?;
    let rebuilt = rebuilt || damage.records > 0;
    Ok(Loaded { state, meta_lost, progress_lost, rebuilt })
}

/// Reads the state records of one kind; the names of those that failed go to `bad`.
fn states<T>(
    records: &ReadRecords,
    kind: Kind,
    damage: &mut Damage,
    bad: &mut BTreeSet<(u8, String)>,
    decode: impl Fn(&str, &[u8]) -> Option<T>,
) -> Result<BTreeMap<Arc<str>, T>, Trouble> {
    let mut states = BTreeMap::new();
    let (low, high) = ([kind as u8], [kind as u8 + 1]);
    for entry in records.range::<&[u8]>(low.as_slice()..high.as_slice())? {
        let (key, value) = entry?;
        let name = split_key(key.value()).map(|(_, name, _)| name);
        let decoded = name.zip(unseal(key.value(), value.value()));
        if let Some((name, state)) =
            decoded.and_then(|(name, body)| Some((name, decode(name, body)?)))
        {
            states.insert(Arc::from(name), state);
        } else {
            damage.bad(key.value(), value.value());
            bad.insert((kind as u8, name.unwrap_or_default().to_owned()));
        }
    }
    Ok(states)
}

fn load_schemas(
    records: &ReadRecords,
    damage: &mut Damage,
) -> Result<BTreeMap<Arc<str>, Schemas>, Trouble> {
    let mut schemas: BTreeMap<Arc<str>, Schemas> = BTreeMap::new();
    let (low, high) = ([Kind::Schema as u8], [Kind::Schema as u8 + 1]);
    for entry in records.range::<&[u8]>(low.as_slice()..high.as_slice())? {
        let (key, value) = entry?;
        let schema = unseal(key.value(), value.value()).and_then(decode_schema);
        let place = split_key(key.value());
        match place.zip(schema) {
            Some(((_, table, number), schema)) => {
                schemas.entry(Arc::from(table)).or_default().push((number, schema));
            }
            None => damage.bad(key.value(), value.value()),
        }
    }
    Ok(schemas)
}

/// Rebuilds the states that failed their check or are not there, from the rows.
fn rebuild(
    records: &ReadRecords,
    state: &mut State,
    layout: &Layout,
    bad: &BTreeSet<(u8, String)>,
    damage: &mut Damage,
) -> Result<bool, Trouble> {
    let lost = |kind: Kind| {
        let lost = bad.iter().filter(move |(bad, name)| *bad == kind as u8 && !name.is_empty());
        lost.map(|(_, name)| Arc::from(&**name))
    };
    let sinks: BTreeSet<Arc<str>> =
        layout.sinks.iter().map(|sink| sink.name.clone()).chain(lost(Kind::Sink)).collect();
    let tables: BTreeSet<Arc<str>> =
        layout.tables.iter().map(|table| table.name.clone()).chain(lost(Kind::Table)).collect();
    let mut rebuilt = false;
    for name in sinks {
        if let Entry::Vacant(vacant) = state.sinks.entry(name) {
            let sink = outbox::rebuild(records, vacant.key(), damage)?;
            rebuilt |= sink != SinkState::default();
            vacant.insert(sink);
        }
    }
    for name in tables {
        if !state.tables.contains_key(&name) {
            let passed = state
                .progress
                .values()
                .flat_map(|progress| progress.processed.iter().chain(&progress.replay_from))
                .filter(|(table, _)| *table == name)
                .map(|(_, position)| *position)
                .max();
            let table = log::rebuild(records, &name, passed.unwrap_or(0))?;
            rebuilt |= table != TableState::default();
            state.tables.insert(name, table);
        }
    }
    Ok(rebuilt)
}

/// Raises the epoch where ids could repeat, and writes what was rebuilt.
fn settle_epoch(
    files: &Files,
    db: &Database,
    loaded: Loaded,
    options: &StoreOptions,
    recovery: &mut Recovery,
) -> Result<State, StoreError> {
    let Loaded { mut state, meta_lost, progress_lost, rebuilt } = loaded;
    let renamed = state.meta.gateway != options.gateway;
    if meta_lost || !progress_lost.is_empty() {
        state.meta.epoch = next_epoch(&*files.disk, options.epoch_hint, state.meta.epoch)?;
        tracing::error!(epoch = state.meta.epoch, ?progress_lost, "progress is lost: new epoch");
    }
    state.meta.gateway.clone_from(&options.gateway);
    if meta_lost || rebuilt || renamed {
        write(db, |records| {
            // What failed its check has been counted and copied aside; it shall not be met again.
            let (low, high) = ([Kind::Sink as u8], [Kind::Log as u8]);
            records.retain_in::<&[u8], _>(low.as_slice()..high.as_slice(), |key, value| {
                unseal(key, value).is_some()
            })?;
            state.put_all(records)
        })
        .map_err(|trouble| failed(files, &trouble))?;
    }
    recovery.progress_lost = progress_lost;
    Ok(state)
}

fn unclaimed(state: &State, layout: &Layout) -> Vec<String> {
    let sinks = state.sinks.keys().filter(|name| !layout.sinks.iter().any(|s| s.name == **name));
    let tables = state.tables.keys().filter(|name| !layout.tables.iter().any(|t| t.name == **name));
    sinks
        .map(|name| format!("sink {name}"))
        .chain(tables.map(|name| format!("table {name}")))
        .collect()
}
