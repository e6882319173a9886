//! Writes the pictures of `docs/architecture.md`: `cargo run --package queen-drawings`.

use std::fs;
use std::io;
use std::path::Path;

fn main() -> io::Result<()> {
    let folder = Path::new(queen_drawings::FOLDER);
    fs::create_dir_all(folder)?;
    for (name, picture) in queen_drawings::all() {
        fs::write(folder.join(name), picture.svg)?;
    }
    Ok(())
}
