//! The lab's kernel: source, patches, configuration, build, and a cache of the images.
//!
//! The cache is keyed by content, so an unchanged kernel costs nothing, and the build directories are kept, so
//! a patch that touches a few `.c` files rebuilds only those.

mod config;
mod make;
mod series;
mod source;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::Stop;
use crate::cache::{Cache, Key, sha256, write_whole};
use crate::error::{IoContext, LabError, Result};

pub use config::{Fragment, Options, merge};
pub use series::{Patch, read_series};
pub use source::Source;

/// Space that a build from nothing needs, in MiB: two unpacked trees' worth and objects with debug information.
const BUILD_MIB: u64 = 6 << 10;
/// How long to wait for another build to end.
const LOCK_DEADLINE: Duration = Duration::from_secs(60 * 60);

/// Which kernel to build.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Flavor {
    /// All patches of the series; each topic has its switch.
    #[default]
    Patched,
    /// No patch.
    Stock,
    /// All patches, with KASAN, lockdep and `DEBUG_VM`.
    Debug,
    /// No patch, with the same checks.
    StockDebug,
}

impl Flavor {
    /// The flavor that the switches `--stock` and `--debug` name.
    #[must_use]
    pub fn new(stock: bool, debug: bool) -> Self {
        match (stock, debug) {
            (false, false) => Self::Patched,
            (true, false) => Self::Stock,
            (false, true) => Self::Debug,
            (true, true) => Self::StockDebug,
        }
    }

    fn stock(self) -> bool {
        matches!(self, Self::Stock | Self::StockDebug)
    }

    fn debug(self) -> bool {
        matches!(self, Self::Debug | Self::StockDebug)
    }

    /// Name in file names and results.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Patched => "patched",
            Self::Stock => "stock",
            Self::Debug => "debug",
            Self::StockDebug => "stock-debug",
        }
    }
}

/// What is going on, for a progress line.
#[derive(Clone, Debug)]
pub enum Progress {
    /// A new step began.
    Step(String),
    /// `make` has finished that many steps; the text is its last line.
    Make {
        /// Objects and files made so far.
        done: usize,
        /// How many the last complete build of this kind made.
        of: Option<usize>,
        /// The last line that make printed.
        line: String,
    },
}

/// What a kernel image was made of.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KernelInfo {
    /// Key of the image in the cache.
    pub key: String,
    /// As `uname -r` prints it in the guest.
    pub release: String,
    /// Which patches and checks.
    pub flavor: Flavor,
    /// Package version, or directory and version, of the source.
    pub source: String,
    /// The patches in their order, with the SHA-256 of each.
    pub patches: Vec<(String, String)>,
    /// SHA-256 of the final `.config`.
    pub config_sha256: String,
    /// SHA-256 of the image file.
    pub image_sha256: String,
    /// First line of the compiler's `--version`.
    pub compiler: String,
    /// Time that this build took, in seconds.
    pub build_seconds: f64,
}

/// A kernel that can be booted.
#[derive(Clone, Debug)]
pub struct Kernel {
    /// The `bzImage`.
    pub image: PathBuf,
    /// What it is.
    pub info: KernelInfo,
    /// It was in the cache already.
    pub cached: bool,
}

/// A kernel to be built from the repository's patches and configuration.
#[derive(Debug)]
pub struct Build<'a> {
    /// The repository, which holds `kernel/`.
    pub repo: &'a Path,
    /// The cache to build in.
    pub cache: &'a Cache,
    /// Where the source comes from.
    pub source: &'a Source,
    /// Patched or stock, with or without checks.
    pub flavor: Flavor,
    /// Compiler processes at once.
    pub jobs: usize,
}

impl Build<'_> {
    /// Builds the kernel unless the cache has it.
    ///
    /// # Errors
    /// Anything from a missing package to a patch that does not apply; the texts say what to do.
    pub fn run(&self, stop: &Stop, progress: &mut dyn FnMut(Progress)) -> Result<Kernel> {
        let kernel_dir = self.repo.join("kernel");
        let patches = if self.flavor.stock() { Vec::new() } else { read_series(&kernel_dir)? };
        let options = merge(&config::read_fragments(&kernel_dir.join("config"), self.flavor.debug())?);
        let source_id = self.source.identify()?;
        let compiler = make::compiler()?;
        let key = image_key(&source_id, &patches, &options, &compiler);

        let image_dir = self.cache.path(format!("images/{key}"));
        if let Some(kernel) = load(&image_dir)? {
            return Ok(kernel);
        }
        let name = self.flavor.name();
        let lock = self.cache.lock("kernel", LOCK_DEADLINE, stop, || {
            progress(Progress::Step(String::from("waiting for another kernel build")));
        })?;
        // Whoever held the lock may have built this very image.
        if let Some(kernel) = load(&image_dir)? {
            return Ok(kernel);
        }
        self.cache.need_space("a kernel build", BUILD_MIB)?;
        let start = Instant::now();
        let tree_name =
            format!("{}-{}", source_id.dir_name(), if self.flavor.stock() { "stock" } else { "patched" });
        let tree = self.cache.dir("trees")?.join(tree_name);
        progress(Progress::Step(format!("preparing the source ({source_id})")));
        self.source.prepare(&tree, &patches, stop)?;
        progress(Progress::Step(format!("applying {} patches", patches.len())));
        series::apply(&tree, self.source, &source_id.to_string(), &patches)?;

        let objects = self.cache.dir(format!("objects/{}-{name}", source_id.dir_name()))?;
        let make = make::Make {
            tree: &tree,
            objects: &objects,
            log: self.cache.dir("logs")?.join(format!("kernel-{name}.log")),
            jobs: self.jobs,
            lock: &lock,
        };
        progress(Progress::Step(format!("configuring the {name} kernel, image {key}")));
        make.configure(&options, stop)?;
        progress(Progress::Step(format!("building the {name} kernel")));
        make.build(stop, progress)?;

        let config = fs::read(objects.join(".config")).context("read", objects.join(".config"))?;
        let image_file = objects.join("arch/x86/boot/bzImage");
        let image = fs::read(&image_file).context("read", &image_file)?;
        let release_file = objects.join("include/config/kernel.release");
        let release = fs::read_to_string(&release_file).context("read", &release_file)?;
        let info = KernelInfo {
            key,
            release: release.trim().to_owned(),
            flavor: self.flavor,
            source: source_id.to_string(),
            patches: patches.iter().map(|patch| (patch.name.clone(), sha256(&patch.content))).collect(),
            config_sha256: sha256(&config),
            image_sha256: sha256(&image),
            compiler,
            build_seconds: start.elapsed().as_secs_f64(),
        };
        store(&image_dir, &info, &image, &config)?;
        Ok(Kernel { image: image_dir.join("bzImage"), info, cached: false })
    }
}

/// The newest image in the cache, of any kind: good enough to find out what boots here.
///
/// # Errors
/// If the cache cannot be read.
pub fn any_cached(cache: &Cache) -> Result<Option<Kernel>> {
    let dir = cache.dir("images")?;
    let mut newest = None;
    for entry in fs::read_dir(&dir).context("list", &dir)? {
        let path = entry.context("list", &dir)?.path();
        let Some(kernel) = load(&path)? else { continue };
        let made = fs::metadata(&kernel.image).and_then(|meta| meta.modified()).ok();
        if !kernel.info.flavor.debug() && newest.as_ref().is_none_or(|(time, _)| made > *time) {
            newest = Some((made, kernel));
        }
    }
    Ok(newest.map(|(_, kernel)| kernel))
}

fn image_key(source: &source::SourceId, patches: &[Patch], options: &Options, compiler: &str) -> String {
    let mut key = Key::default();
    key.add("source", source.digest.as_bytes()).add("compiler", compiler.as_bytes());
    for patch in patches {
        key.add("patch", &patch.content);
    }
    for (name, value) in options {
        key.add(name, value.as_bytes());
    }
    key.short()
}

const INFO_FILE: &str = "kernel.json";

fn load(dir: &Path) -> Result<Option<Kernel>> {
    let Ok(text) = fs::read(dir.join(INFO_FILE)) else { return Ok(None) };
    let info = serde_json::from_slice(&text)
        .map_err(|error| LabError::BadRun { path: dir.join(INFO_FILE), reason: error.to_string() })?;
    let image = dir.join("bzImage");
    Ok(image.exists().then_some(Kernel { image, info, cached: true }))
}

/// The description is written last: without it the image does not count.
fn store(dir: &Path, info: &KernelInfo, image: &[u8], config: &[u8]) -> Result<()> {
    fs::create_dir_all(dir).context("create", dir)?;
    write_whole(&dir.join("bzImage"), image)?;
    write_whole(&dir.join("config"), config)?;
    let text = serde_json::to_vec_pretty(info).expect("the description of a kernel is plain data");
    write_whole(&dir.join(INFO_FILE), &text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn patch(content: &str) -> Patch {
        Patch { name: String::from("t/1.patch"), content: content.as_bytes().to_vec() }
    }

    #[test]
    fn the_key_follows_content_and_nothing_else() {
        let id = |digest: &str| source::SourceId { label: String::from("any"), digest: digest.to_owned() };
        let options = Options::from([(String::from("CONFIG_A"), String::from("y"))]);
        let base = image_key(&id("1"), &[patch("x")], &options, "gcc 12");
        assert_eq!(base, image_key(&id("1"), &[patch("x")], &options, "gcc 12"));
        assert_ne!(base, image_key(&id("2"), &[patch("x")], &options, "gcc 12"));
        assert_ne!(base, image_key(&id("1"), &[patch("y")], &options, "gcc 12"));
        assert_ne!(base, image_key(&id("1"), &[patch("x"), patch("y")], &options, "gcc 12"));
        assert_ne!(base, image_key(&id("1"), &[patch("x")], &Options::new(), "gcc 12"));
        assert_ne!(base, image_key(&id("1"), &[patch("x")], &options, "gcc 14"));
    }

    #[test]
    fn an_image_without_its_description_does_not_count() {
        let dir = tempfile::tempdir().unwrap();
        let info = KernelInfo {
            key: String::from("k"),
            release: String::from("6.12.1"),
            flavor: Flavor::Patched,
            source: String::from("s"),
            patches: vec![],
            config_sha256: String::new(),
            image_sha256: String::new(),
            compiler: String::new(),
            build_seconds: 1.0,
        };
        let image = dir.path().join("image");
        store(&image, &info, b"kernel", b"config").unwrap();
        assert_eq!(load(&image).unwrap().unwrap().info, info);
        fs::remove_file(image.join(INFO_FILE)).unwrap();
        assert!(load(&image).unwrap().is_none());
    }
}
