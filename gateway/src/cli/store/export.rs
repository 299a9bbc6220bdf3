//! An export, part by part: what comes as Arrow is written as one Arrow stream, or as JSON lines.

use std::fs::File;
use std::io::{self, BufWriter, ErrorKind, Write};
use std::path::Path;

use arrow::error::ArrowError;
use arrow::ipc::reader::StreamReader;
use arrow::ipc::writer::StreamWriter;
use tidegate_engine::encode::{JsonOptions, json_rows};
use tidegate_web_ui::{Exportable, Keeper};

use super::super::check::fail;
use super::super::keeper::refuse;
use super::ExportFormat;

/// Writes everything that is kept of `name`; gives the exit code, which says also whether something
/// was missing.
pub(super) async fn export(
    keeper: &dyn Keeper,
    what: Exportable,
    name: &str,
    format: ExportFormat,
    out: Option<&Path>,
) -> u8 {
    let target: Box<dyn Write> = match out {
        None => Box::new(io::stdout()),
        Some(path) => match File::create(path) {
            Ok(file) => Box::new(file),
            Err(error) => return fail(format_args!("{}: {error}", path.display())),
        },
    };
    let mut writer = Writer { out: BufWriter::new(target), format, arrow: None };
    let mut from = 0;
    loop {
        let part = match keeper.export(what, name.to_owned(), from).await {
            Ok(Some(part)) => part,
            Ok(None) => break,
            Err(refusal) => return refuse(&refusal),
        };
        if let Err(error) = writer.part(&part.arrow) {
            return failed(&error);
        }
        from = part.next;
    }
    if let Err(error) = writer.end() {
        return failed(&error);
    }
    match keeper.contents().await {
        Ok(contents) if contents.status.corrupt_rows > 0 => {
            let lost = contents.status.corrupt_rows;
            fail(format_args!(
                "what can be read is written; {lost} rows of the store are lost: see `tidegate store verify`"
            ))
        }
        Ok(_) => 0,
        Err(refusal) => refuse(&refusal),
    }
}

/// A reader who leaves is no failure, as in `tidegate store export … | head`.
fn failed(error: &ArrowError) -> u8 {
    match error {
        ArrowError::IoError(_, error) if error.kind() == ErrorKind::BrokenPipe => 0,
        error => fail(format_args!("the export cannot be written: {error}")),
    }
}

type Out = BufWriter<Box<dyn Write>>;

/// Writes parts in a format.
struct Writer {
    out: Out,
    format: ExportFormat,
    /// The bytes of the Arrow stream so far; begun with the first part, which has the columns.
    arrow: Option<StreamWriter<Vec<u8>>>,
}

impl Writer {
    fn part(&mut self, bytes: &[u8]) -> Result<(), ArrowError> {
        let reader = StreamReader::try_new(bytes, None)?;
        let schema = reader.schema();
        for batch in reader {
            let batch = batch?;
            match self.format {
                ExportFormat::Jsonl => {
                    let rows = json_rows(&batch, &JsonOptions::default(), 0)
                        .map_err(|error| ArrowError::JsonError(error.to_string()))?;
                    for row in rows {
                        self.out.write_all(&row)?;
                        self.out.write_all(b"\n")?;
                    }
                }
                ExportFormat::Arrow => {
                    if self.arrow.is_none() {
                        self.arrow = Some(StreamWriter::try_new(Vec::new(), &schema)?);
                    }
                    let Some(writer) = &mut self.arrow else { continue };
                    writer.write(&batch)?;
                    let written = std::mem::take(writer.get_mut());
                    self.out.write_all(&written)?;
                }
            }
        }
        Ok(())
    }

    fn end(mut self) -> Result<(), ArrowError> {
        if let Some(mut arrow) = self.arrow.take() {
            arrow.finish()?;
            self.out.write_all(&arrow.into_inner()?)?;
        }
        self.out.flush()?;
        Ok(())
    }
}
