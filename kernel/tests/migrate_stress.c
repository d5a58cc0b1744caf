// SPDX-License-Identifier: GPL-2.0-only
/*
 * migrate_stress: does migration cope with folios that wait in a per-CPU LRU
 * batch of another CPU?
 *
 * A thread on a second CPU brings pages into one of its batches, then the main
 * thread, on the first CPU, moves them to another node. Every page has to arrive
 * there, with its content. With vm.migrate_drain=local, in which only the
 * batches of the moving CPU are emptied, every trigger has to fail: otherwise it
 * would not test the batches (--control).
 *
 * Build: gcc -O2 -Wall -static -pthread -o migrate_stress migrate_stress.c
 * Needs two CPUs, two nodes with memory, and root.
 *
 * Prints one JSON object a line for each trigger. Exit code: 0 as expected,
 * 1 not so, 2 could not run.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/mempolicy.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/swap.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE		4096UL
#define MAX_PAGES	16
#define DEADLINE	600	/* seconds a trigger may take, on whatever is slow */
#define DRAIN_SYSCTL	"/proc/sys/vm/migrate_drain"

static int from_node = -1, to_node = -1, mover_cpu = -1, other_cpu = -1;

static void die(const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	fprintf(stderr, "migrate_stress: ");
	vfprintf(stderr, fmt, ap);
	fprintf(stderr, ": %s\n", strerror(errno));
	va_end(ap);
	exit(2);
}

static void pin(int cpu)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	if (sched_setaffinity(0, sizeof(set), &set))
		die("pinning to CPU %d", cpu);
}

/* ---- One trigger's pages ------------------------------------------------ */

struct batch {
	char *p;		/* as the mover sees them */
	char *alias;		/* as the other CPU sees them, where that differs */
	int fd;
	int n;
	uint64_t seed;
	/*
	 * Whatever else goes on holds references of its own for a moment, for
	 * which a page may stay behind in every mode: it is moved once more.
	 */
	bool racing;
	int status[MAX_PAGES];
};

struct result {
	long pages;		/* that should have been moved */
	long moved;
	long late;		/* of these: only by the second call */
	long failed;		/* still there, but on the wrong node */
	long corrupt;
	const char *skipped;
};

static uint64_t word(uint64_t seed, int page, unsigned int i)
{
	return (seed << 32) ^ ((uint64_t)page << 16) ^ (i * 0x9e3779b97f4a7c15ULL);
}

static void fill_page(char *page, uint64_t seed, int nr)
{
	uint64_t *w = (uint64_t *)page;
	unsigned int i;

	for (i = 0; i < PAGE / sizeof(*w); i++)
		w[i] = word(seed, nr, i);
}

static bool page_intact(const char *page, uint64_t seed, int nr)
{
	const uint64_t *w = (const uint64_t *)page;
	unsigned int i;

	for (i = 0; i < PAGE / sizeof(*w); i++)
		if (w[i] != word(seed, nr, i))
			return false;
	return true;
}

static void fill(struct batch *b)
{
	int i;

	for (i = 0; i < b->n; i++)
		fill_page(b->p + i * PAGE, b->seed, i);
}

static void prefer_from_node(void *p, size_t len)
{
	unsigned long mask = 1UL << from_node;

	if (syscall(SYS_mbind, p, len, MPOL_PREFERRED, &mask, sizeof(mask) * 8, 0))
		die("mbind to node %d", from_node);
}

static char *map(size_t len, int flags, int fd)
{
	char *p = mmap(NULL, len, PROT_READ | PROT_WRITE, flags, fd, 0);

	if (p == MAP_FAILED)
		die("mmap");
	if (fd < 0 || (flags & MAP_SHARED))
		prefer_from_node(p, len);
	madvise(p, len, MADV_NOHUGEPAGE);
	return p;
}

static void map_anon(struct batch *b)
{
	b->p = map(b->n * PAGE, MAP_PRIVATE | MAP_ANONYMOUS, -1);
}

static void map_file(struct batch *b)
{
	b->fd = memfd_create("migrate_stress", 0);
	if (b->fd < 0 || ftruncate(b->fd, b->n * PAGE))
		die("memfd");
	b->p = map(b->n * PAGE, MAP_SHARED, b->fd);
}

static void unmap(struct batch *b)
{
	if (b->p)
		munmap(b->p, b->n * PAGE);
	if (b->alias)
		munmap(b->alias, b->n * PAGE);
	if (b->fd >= 0)
		close(b->fd);
}

/* Puts what this CPU has batched onto the LRU lists. */
static void drain_this_cpu(void)
{
	static __thread char *page;

	if (!page) {
		page = map(PAGE, MAP_PRIVATE | MAP_ANONYMOUS, -1);
		*page = 1;
	}
	/* Starts with lru_add_drain(), then finds nothing active here */
	if (madvise(page, PAGE, MADV_COLD))
		die("madvise(MADV_COLD)");
}

static long move_pages(pid_t pid, char *p, int n, int *node, int *status)
{
	void *pages[MAX_PAGES];
	int nodes[MAX_PAGES], i;

	for (i = 0; i < n; i++) {
		pages[i] = p + i * PAGE;
		nodes[i] = node ? *node : 0;
		status[i] = -EINPROGRESS;
	}
	return syscall(SYS_move_pages, pid, n, pages, node ? nodes : NULL, status,
		       node ? MPOL_MF_MOVE_ALL : 0);
}

static void query(struct batch *b)
{
	if (move_pages(0, b->p, b->n, NULL, b->status))
		die("move_pages query");
}

static uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000ull + t.tv_nsec;
}

/* How long the last move of the main thread took. */
static atomic_ullong move_ns;

static void move(struct batch *b)
{
	int status[MAX_PAGES];
	uint64_t start = now_ns();

	move_pages(0, b->p, b->n, &to_node, status);
	atomic_store(&move_ns, now_ns() - start);
}

/* Where are pages first, first + step, ... now, and what is in them? */
static void judge(struct batch *b, struct result *r, int first, int step)
{
	int i;

	query(b);
	for (i = first; i < b->n; i += step) {
		r->pages++;
		if (b->racing && b->status[i] != to_node) {
			move_pages(0, b->p + i * PAGE, 1, &to_node, &b->status[i]);
			if (b->status[i] == to_node)
				r->late++;
		}
		if (b->status[i] == to_node)
			r->moved++;
		else
			r->failed++;
		if (!page_intact(b->p + i * PAGE, b->seed, i))
			r->corrupt++;
	}
}

/* ---- The thread on the other CPU ---------------------------------------- */

static struct {
	pthread_mutex_t lock;
	pthread_cond_t cond;
	void (*fn)(struct batch *b);
	struct batch *arg;
} job = { .lock = PTHREAD_MUTEX_INITIALIZER, .cond = PTHREAD_COND_INITIALIZER };

static atomic_int meet;

static void *other_thread(void *unused)
{
	pin(other_cpu);
	pthread_mutex_lock(&job.lock);
	for (;;) {
		while (!job.fn)
			pthread_cond_wait(&job.cond, &job.lock);
		pthread_mutex_unlock(&job.lock);
		job.fn(job.arg);
		pthread_mutex_lock(&job.lock);
		job.fn = NULL;
		pthread_cond_broadcast(&job.cond);
	}
	return unused;
}

static void start_other(void (*fn)(struct batch *), struct batch *b)
{
	pthread_mutex_lock(&job.lock);
	job.arg = b;
	job.fn = fn;
	pthread_cond_broadcast(&job.cond);
	pthread_mutex_unlock(&job.lock);
}

static void wait_other(void)
{
	pthread_mutex_lock(&job.lock);
	while (job.fn)
		pthread_cond_wait(&job.cond, &job.lock);
	pthread_mutex_unlock(&job.lock);
}

static void on_other(void (*fn)(struct batch *), struct batch *b)
{
	start_other(fn, b);
	wait_other();
}

/* Both sides call this, and leave it at the same time. */
static void rendezvous(void)
{
	int turn = atomic_fetch_add(&meet, 1) / 2;

	while (atomic_load(&meet) < 2 * (turn + 1))
		;
}

/* ---- Triggers: what the other CPU has batched --------------------------- */

static void read_twice(struct batch *b)
{
	static char buf[MAX_PAGES * PAGE];
	int fd = open("/proc/self/mem", O_RDONLY), i;

	if (fd < 0)
		die("/proc/self/mem");
	/* Gets the pages with FOLL_TOUCH: marks as referenced, then activates */
	for (i = 0; i < 2; i++)
		if (pread(fd, buf, b->n * PAGE, (off_t)(uintptr_t)b->p) < 0)
			die("reading /proc/self/mem");
	close(fd);
}

static void deactivate(struct batch *b)
{
	read_twice(b);
	drain_this_cpu();
	if (madvise(b->p, b->n * PAGE, MADV_COLD))
		die("madvise(MADV_COLD)");
}

static void lazyfree(struct batch *b)
{
	if (madvise(b->p, b->n * PAGE, MADV_FREE))
		die("madvise(MADV_FREE)");
}

static void read_alias(struct batch *b)
{
	int i;

	for (i = 0; i < b->n; i++)
		(void)*(volatile char *)(b->alias + i * PAGE);
}

static void cow_alias(struct batch *b)
{
	int i;

	read_alias(b);
	drain_this_cpu();
	for (i = 0; i < b->n; i++)
		b->alias[i * PAGE] = 1;
}

static void lock_on_fault(char *p, size_t len)
{
	if (mlock2(p, len, MLOCK_ONFAULT))
		die("mlock2");
}

static void fresh(struct batch *b, struct result *r)
{
	map_anon(b);
	on_other(fill, b);
	move(b);
	judge(b, r, 0, 1);
}

static void fresh_file(struct batch *b, struct result *r)
{
	map_file(b);
	on_other(fill, b);
	move(b);
	judge(b, r, 0, 1);
}

static void with_job(struct batch *b, struct result *r, void (*fn)(struct batch *))
{
	map_anon(b);
	fill(b);
	drain_this_cpu();
	on_other(fn, b);
	move(b);
	judge(b, r, 0, 1);
}

static void activated(struct batch *b, struct result *r)
{
	with_job(b, r, read_twice);
}

static void deactivated(struct batch *b, struct result *r)
{
	with_job(b, r, deactivate);
}

static void lazyfreed(struct batch *b, struct result *r)
{
	with_job(b, r, lazyfree);
}

static void mlocked_new(struct batch *b, struct result *r)
{
	map_anon(b);
	lock_on_fault(b->p, b->n * PAGE);
	on_other(fill, b);
	move(b);
	judge(b, r, 0, 1);
}

static void mlocked(struct batch *b, struct result *r)
{
	map_file(b);
	fill(b);
	drain_this_cpu();
	b->alias = map(b->n * PAGE, MAP_SHARED, b->fd);
	lock_on_fault(b->alias, b->n * PAGE);
	on_other(read_alias, b);
	move(b);
	judge(b, r, 0, 1);
}

/* A write to a private mapping munlocks the page of the file. */
static void munlocked(struct batch *b, struct result *r)
{
	b->n /= 2;	/* the copies go into the same batch */
	map_file(b);
	fill(b);
	drain_this_cpu();
	b->alias = map(b->n * PAGE, MAP_PRIVATE, b->fd);
	lock_on_fault(b->alias, b->n * PAGE);
	on_other(cow_alias, b);
	move(b);
	judge(b, r, 0, 1);
}

static long number_in(const char *path)
{
	FILE *f = fopen(path, "r");
	long v = -1;

	if (!f)
		return -1;
	if (fscanf(f, "%ld", &v) != 1)
		v = -1;
	fclose(f);
	return v;
}

static bool write_file(const char *path, const char *s)
{
	int fd = open(path, O_WRONLY);
	bool ok = fd >= 0 && write(fd, s, strlen(s)) == (ssize_t)strlen(s);

	if (fd >= 0)
		close(fd);
	return ok;
}

static void ksm(struct batch *b, struct result *r)
{
	char *twin;
	int i;

	if (access("/sys/kernel/mm/ksm/run", W_OK)) {
		r->skipped = "no KSM in this kernel";
		return;
	}
	map_anon(b);
	fill(b);
	twin = map(b->n * PAGE, MAP_PRIVATE | MAP_ANONYMOUS, -1);
	memcpy(twin, b->p, b->n * PAGE);
	madvise(b->p, b->n * PAGE, MADV_MERGEABLE);
	madvise(twin, b->n * PAGE, MADV_MERGEABLE);
	write_file("/sys/kernel/mm/ksm/sleep_millisecs", "1");
	write_file("/sys/kernel/mm/ksm/run", "1");
	for (i = 0; i < 2000 &&
	     number_in("/sys/kernel/mm/ksm/pages_sharing") < b->n; i++)
		usleep(1000);
	write_file("/sys/kernel/mm/ksm/run", "0");
	if (number_in("/sys/kernel/mm/ksm/pages_sharing") < b->n) {
		r->skipped = "KSM did not merge the pages within 2 s";
	} else {
		drain_this_cpu();
		on_other(read_twice, b);
		move(b);
		judge(b, r, 0, 1);
	}
	write_file("/sys/kernel/mm/ksm/run", "2");	/* unmerge */
	munmap(twin, b->n * PAGE);
}

/* Makes swap space of a block device, whose content is lost. */
static void add_swap(const char *device)
{
	char header[PAGE] = { 0 };
	uint32_t *info = (uint32_t *)(header + 1024);
	int fd = open(device, O_RDWR);
	off_t size;

	if (fd < 0)
		die("opening %s", device);
	size = lseek(fd, 0, SEEK_END);
	info[0] = 1;				/* version */
	info[1] = size / PAGE - 1;		/* last page */
	memcpy(header + PAGE - 10, "SWAPSPACE2", 10);
	if (pwrite(fd, header, PAGE, 0) != (ssize_t)PAGE || fsync(fd))
		die("writing a swap header to %s", device);
	close(fd);
	if (swapon(device, 0))
		die("swapon %s", device);
}

static void swapped_in(struct batch *b, struct result *r)
{
	int i;

	map_anon(b);
	fill(b);
	drain_this_cpu();
	if (madvise(b->p, b->n * PAGE, MADV_PAGEOUT))
		die("madvise(MADV_PAGEOUT)");
	query(b);
	for (i = 0; i < b->n; i++)
		if (b->status[i] != -ENOENT)
			break;
	if (i < b->n) {
		r->skipped = "the pages cannot be swapped out (no swap space?)";
		return;
	}
	b->alias = NULL;
	struct batch reader = { .alias = b->p, .n = b->n, .fd = -1 };

	on_other(read_alias, &reader);
	move(b);
	judge(b, r, 0, 1);
}

/* ---- Triggers: the other system calls ----------------------------------- */

static void mbind_fresh(struct batch *b, struct result *r)
{
	unsigned long mask = 1UL << to_node;

	map_anon(b);
	on_other(fill, b);
	syscall(SYS_mbind, b->p, b->n * PAGE, MPOL_BIND, &mask, sizeof(mask) * 8,
		MPOL_MF_MOVE);
	judge(b, r, 0, 1);
}

static void migrate_pages_fresh(struct batch *b, struct result *r)
{
	unsigned long from = 1UL << from_node, to = 1UL << to_node;

	map_anon(b);
	on_other(fill, b);
	if (syscall(SYS_migrate_pages, 0, sizeof(from) * 8, &from, &to) < 0)
		die("migrate_pages");
	judge(b, r, 0, 1);
	syscall(SYS_migrate_pages, 0, sizeof(from) * 8, &to, &from);
}

/* ---- Triggers: something else happens to the pages at the same time ----- */

static atomic_bool stop_writing;
static uint64_t written[MAX_PAGES];

static void fill_and_write(struct batch *b)
{
	uint64_t n = 0;
	int i;

	fill(b);
	rendezvous();
	while (!atomic_load(&stop_writing)) {
		n++;
		for (i = 0; i < b->n; i++)
			*(volatile uint64_t *)(b->p + i * PAGE + 8 * (n % 8)) = n;
	}
	/* What the last 8 values are is known: put the pattern back */
	for (i = 0; i < b->n; i++) {
		volatile uint64_t *w = (volatile uint64_t *)(b->p + i * PAGE);
		uint64_t k;

		written[i] = 0;
		for (k = n > 8 ? n - 7 : 1; k <= n; k++) {
			if (w[k % 8] != k)
				written[i]++;	/* a lost write */
			w[k % 8] = word(b->seed, i, k % 8);
		}
	}
}

static void writer(struct batch *b, struct result *r)
{
	int i;

	map_anon(b);
	atomic_store(&stop_writing, false);
	start_other(fill_and_write, b);
	rendezvous();
	move(b);
	atomic_store(&stop_writing, true);
	wait_other();
	for (i = 0; i < b->n; i++)
		r->corrupt += written[i] != 0;
	judge(b, r, 0, 1);
}

/*
 * What the other CPU does empties its batches sooner or later: give the mover a
 * head start, of a different length each time, from none to half as long again
 * as a move takes. So a few of 16 rounds begin when the move is over, which must
 * then have failed where only the mover's own batches are emptied.
 */
static void head_start(const struct batch *b)
{
	uint64_t wait = atomic_load(&move_ns) * (b->seed % 16) / 10;
	uint64_t start = now_ns();

	while (now_ns() - start < wait)
		;
}

static void fill_and_move(struct batch *b)
{
	int i, status;

	fill(b);
	rendezvous();
	head_start(b);
	for (i = 0; i < b->n; i += 2)
		move_pages(0, b->p + i * PAGE, 1, &to_node, &status);
}

/* Both move the even pages, only the main thread the odd ones. */
static void second_mover(struct batch *b, struct result *r)
{
	map_anon(b);
	start_other(fill_and_move, b);
	rendezvous();
	move(b);
	wait_other();
	judge(b, r, 0, 1);
}

static void fill_and_unmap(struct batch *b)
{
	int i;

	fill(b);
	rendezvous();
	head_start(b);
	for (i = 1; i < b->n; i += 2)
		munmap(b->p + i * PAGE, PAGE);
}

/* Every other page goes away; those that stay have to be moved. */
static void unmapper(struct batch *b, struct result *r)
{
	map_anon(b);
	start_other(fill_and_unmap, b);
	rendezvous();
	move(b);
	wait_other();
	judge(b, r, 0, 2);
}

static void keep_batching(struct batch *b)
{
	size_t len = b->n * PAGE;

	fill(b);
	rendezvous();
	while (!atomic_load(&stop_writing)) {
		read_twice(b);
		madvise(b->p, len, MADV_COLD);
		mlock(b->p, len / 2);
		fill(b);
		munlock(b->p, len / 2);
		madvise(b->p, len, MADV_COLD);
		read_twice(b);
	}
}

/* To and fro while the other CPU batches the pages all the time, then for good. */
static void storm(struct batch *b, struct result *r)
{
	int i, status[MAX_PAGES];

	map_anon(b);
	atomic_store(&stop_writing, false);
	start_other(keep_batching, b);
	rendezvous();
	for (i = 0; i < 10; i++)
		move_pages(0, b->p, b->n, i % 2 ? &from_node : &to_node, status);
	atomic_store(&stop_writing, true);
	wait_other();
	move_pages(0, b->p, b->n, &from_node, status);
	on_other(deactivate, b);
	move(b);
	judge(b, r, 0, 1);
}

static atomic_int child_verdict;

static void fill_and_fork(struct batch *b)
{
	pid_t pid;
	int i, st;

	fill(b);
	rendezvous();
	pid = fork();
	if (!pid) {
		for (i = 0; i < b->n; i++)
			if (!page_intact(b->p + i * PAGE, b->seed, i))
				_exit(1);
		_exit(0);
	}
	if (pid < 0 || waitpid(pid, &st, 0) != pid)
		die("fork");
	atomic_store(&child_verdict, st);
}

static void forker(struct batch *b, struct result *r)
{
	map_anon(b);
	b->racing = true;
	start_other(fill_and_fork, b);
	rendezvous();
	move(b);
	wait_other();
	r->corrupt += atomic_load(&child_verdict) != 0;
	judge(b, r, 0, 1);
}

/*
 * The pages of another process, which in every other round exits meanwhile.
 * Only those of the rounds in which it stays are counted.
 */
static void exiter(struct batch *b, struct result *r)
{
	bool stays = b->seed & 1;
	int ready[2], go[2], status[MAX_PAGES], i, st;
	pid_t pid;
	char c;

	map_anon(b);
	if (pipe(ready) || pipe(go))
		die("pipe");
	pid = fork();
	if (pid < 0)
		die("fork");
	if (!pid) {
		pin(other_cpu);
		fill(b);
		if (write(ready[1], "x", 1) != 1)
			_exit(2);
		if (!stays)
			_exit(0);
		if (read(go[0], &c, 1) != 1)
			_exit(2);
		for (i = 0; i < b->n; i++)
			if (!page_intact(b->p + i * PAGE, b->seed, i))
				_exit(1);
		_exit(0);
	}
	if (read(ready[0], &c, 1) != 1)
		die("child of exiter");
	move_pages(pid, b->p, b->n, &to_node, status);
	if (stays) {
		if (move_pages(pid, b->p, b->n, NULL, status))
			die("move_pages query of a child");
		for (i = 0; i < b->n; i++) {
			r->pages++;
			if (status[i] == to_node)
				r->moved++;
			else
				r->failed++;
		}
	}
	if (write(go[1], "x", 1) != 1 || waitpid(pid, &st, 0) != pid)
		die("child of exiter");
	r->corrupt += st != 0;
	close(ready[0]);
	close(ready[1]);
	close(go[0]);
	close(go[1]);
}

/* ---- Folios that never wait in a batch ---------------------------------- */

#define HUGE		(2UL << 20)

static void judge_huge(char *p, uint64_t seed, struct result *r)
{
	int status[1];
	unsigned long i;

	r->pages++;
	move_pages(0, p, 1, &to_node, status);
	if (move_pages(0, p, 1, NULL, status))
		die("move_pages query");
	if (status[0] == to_node)
		r->moved++;
	else
		r->failed++;
	for (i = 0; i < HUGE; i += PAGE)
		if (!page_intact(p + i, seed, i / PAGE)) {
			r->corrupt++;
			break;
		}
}

static void fill_huge(struct batch *b)
{
	unsigned long i;

	for (i = 0; i < HUGE; i += PAGE)
		fill_page(b->alias + i, b->seed, i / PAGE);
}

static void thp(struct batch *b, struct result *r)
{
	struct batch huge = { .fd = -1, .seed = b->seed };
	char *p;

	write_file("/sys/kernel/mm/transparent_hugepage/enabled", "madvise");
	p = mmap(NULL, 2 * HUGE, PROT_READ | PROT_WRITE,
		 MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (p == MAP_FAILED)
		die("mmap");
	prefer_from_node(p, 2 * HUGE);
	huge.alias = (char *)(((uintptr_t)p + HUGE - 1) & ~(HUGE - 1));
	if (madvise(p, 2 * HUGE, MADV_HUGEPAGE)) {
		r->skipped = "no transparent huge pages in this kernel";
	} else {
		on_other(fill_huge, &huge);
		judge_huge(huge.alias, b->seed, r);
	}
	munmap(p, 2 * HUGE);
}

static void hugetlb(struct batch *b, struct result *r)
{
	struct batch huge = { .fd = -1, .seed = b->seed };
	char path[128];

	for (int node = 0; node < 2; node++) {
		snprintf(path, sizeof(path), "/sys/devices/system/node/node%d/hugepages/hugepages-2048kB/nr_hugepages",
			 node ? to_node : from_node);
		if (!write_file(path, "2") || number_in(path) != 2) {
			r->skipped = "no hugetlb pages on both nodes";
			return;
		}
	}
	huge.alias = mmap(NULL, HUGE, PROT_READ | PROT_WRITE,
			  MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB, -1, 0);
	if (huge.alias == MAP_FAILED)
		die("mmap(MAP_HUGETLB)");
	on_other(fill_huge, &huge);
	judge_huge(huge.alias, b->seed, r);
	munmap(huge.alias, HUGE);
}

/* ---- Running them ------------------------------------------------------- */

static const struct trigger {
	const char *name;
	void (*run)(struct batch *b, struct result *r);
	bool batched;		/* has to fail in mode "local" */
} triggers[] = {
	{ "fresh", fresh, true },
	{ "fresh_file", fresh_file, true },
	{ "activated", activated, true },
	{ "deactivated", deactivated, true },
	{ "lazyfreed", lazyfreed, true },
	{ "mlocked_new", mlocked_new, true },
	{ "mlocked", mlocked, true },
	{ "munlocked", munlocked, true },
	{ "ksm", ksm, true },
	{ "swapped_in", swapped_in, true },
	{ "mbind", mbind_fresh, true },
	{ "migrate_pages", migrate_pages_fresh, true },
	{ "writer", writer, true },
	{ "second_mover", second_mover, true },
	{ "storm", storm, true },
	{ "munmap", unmapper, true },
	{ "fork", forker, true },
	{ "exit", exiter, true },
	{ "thp", thp, false },
	{ "hugetlb", hugetlb, false },
};

#define NR_TRIGGERS	(sizeof(triggers) / sizeof(triggers[0]))

static const char * const counters[] = {
	"pgmigrate_success", "pgmigrate_fail", "lru_drain_scan",
	"lru_drain_local", "lru_drain_remote", "migrate_drain_global",
	"migrate_drain_fallback",
};

#define NR_COUNTERS	(sizeof(counters) / sizeof(counters[0]))

/* -1: this kernel does not have the counter. */
static void read_counters(long *v)
{
	FILE *f = fopen("/proc/vmstat", "r");
	char name[64];
	long value;
	size_t i;

	for (i = 0; i < NR_COUNTERS; i++)
		v[i] = -1;
	if (!f)
		return;
	while (fscanf(f, "%63s %ld", name, &value) == 2)
		for (i = 0; i < NR_COUNTERS; i++)
			if (!strcmp(name, counters[i]))
				v[i] = value;
	fclose(f);
}

static bool run_trigger(const struct trigger *t, const char *mode, int rounds,
			bool control)
{
	long before[NR_COUNTERS], after[NR_COUNTERS];
	struct result r = { 0 };
	bool must_fail = control && t->batched;
	bool racing = false;
	bool ok;
	size_t c;
	int i;

	alarm(DEADLINE);
	read_counters(before);
	for (i = 0; i < rounds && !r.skipped; i++) {
		/* 1 to 15 pages: a full batch (31) would empty itself */
		struct batch b = { .fd = -1, .n = 1 + i % (MAX_PAGES - 1),
				   .seed = i + 1 };

		if (b.n == 1 && (t->run == munlocked || t->run == unmapper))
			b.n = 2;
		t->run(&b, &r);
		racing |= b.racing;
		unmap(&b);
	}
	read_counters(after);

	ok = !r.corrupt;
	if (must_fail && racing)
		ok = ok && 2 * (r.failed + r.late) > r.pages;
	else if (must_fail)
		ok = ok && r.failed > 0;
	else
		ok = ok && r.failed == 0;

	if (r.skipped) {
		printf("{\"log\":\"%s: skipped: %s\"}\n", t->name, r.skipped);
		fflush(stdout);
		return true;
	}
	printf("{\"sample\":{\"metric\":\"moved\",\"dimensions\":{\"trigger\":\"%s\"},\"value\":%ld,\"unit\":\"pages\",\"counts\":{\"pages\":%ld,\"late\":%ld,\"failed\":%ld,\"corrupt\":%ld",
	       t->name, r.moved, r.pages, r.late, r.failed, r.corrupt);
	for (c = 0; c < NR_COUNTERS; c++)
		if (before[c] >= 0)
			printf(",\"%s\":%ld", counters[c], after[c] - before[c]);
	printf("}}}\n");
	if (!ok)
		printf("{\"log\":\"%s: not as expected: in mode %s %s\"}\n",
		       t->name, mode, must_fail ? "it must fail" : "every page must move, with its content");
	fflush(stdout);
	return ok;
}

static void find_machine(void)
{
	unsigned int cpu, node;
	char path[96], line[128];
	cpu_set_t set;
	FILE *f;
	int i;

	if (sched_getaffinity(0, sizeof(set), &set))
		die("sched_getaffinity");
	for (i = 0; i < CPU_SETSIZE && other_cpu < 0; i++) {
		if (!CPU_ISSET(i, &set))
			continue;
		if (mover_cpu < 0)
			mover_cpu = i;
		else
			other_cpu = i;
	}
	errno = ENODEV;
	if (other_cpu < 0)
		die("looking for two CPUs");
	pin(mover_cpu);
	if (syscall(SYS_getcpu, &cpu, &node, NULL))
		die("getcpu");
	from_node = node;
	for (i = 0; i < 64 && to_node < 0; i++) {
		unsigned long total = 0;

		snprintf(path, sizeof(path), "/sys/devices/system/node/node%d/meminfo", i);
		f = i == from_node ? NULL : fopen(path, "r");
		if (!f)
			continue;
		while (fgets(line, sizeof(line), f))
			if (sscanf(line, "Node %*d MemTotal: %lu", &total) == 1)
				break;
		fclose(f);
		if (total)
			to_node = i;
	}
	errno = ENODEV;
	if (to_node < 0)
		die("looking for a second node with memory");
}

int main(int argc, char **argv)
{
	const char *mode = NULL, *only = NULL, *swap = NULL;
	bool control = false, ok = true;
	int rounds = 60, ran = 0, i;
	static char current[32];
	pthread_t thread;
	FILE *f;

	for (i = 1; i < argc; i++) {
		if (!strcmp(argv[i], "--mode") && i + 1 < argc)
			mode = argv[++i];
		else if (!strcmp(argv[i], "--trigger") && i + 1 < argc)
			only = argv[++i];
		else if (!strcmp(argv[i], "--rounds") && i + 1 < argc)
			rounds = atoi(argv[++i]);
		else if (!strcmp(argv[i], "--swap") && i + 1 < argc)
			swap = argv[++i];
		else if (!strcmp(argv[i], "--control"))
			control = true;
		else {
			fprintf(stderr, "usage: migrate_stress [--mode global|targeted|local|fallback] [--trigger NAME] [--rounds N] [--swap DEVICE] [--control]\n");
			return 2;
		}
	}
	if (mode && !write_file(DRAIN_SYSCTL, mode))
		die("writing %s to " DRAIN_SYSCTL, mode);
	f = fopen(DRAIN_SYSCTL, "r");
	if (!f || fscanf(f, "%31s", current) != 1)
		strcpy(current, "stock");
	if (f)
		fclose(f);

	if (swap)
		add_swap(swap);
	find_machine();
	if (pthread_create(&thread, NULL, other_thread, NULL))
		die("pthread_create");
	for (i = 0; i < (int)NR_TRIGGERS; i++) {
		if (only && strcmp(only, triggers[i].name))
			continue;
		ok &= run_trigger(&triggers[i], current, rounds, control);
		ran++;
	}
	if (!ran) {
		fprintf(stderr, "migrate_stress: no trigger \"%s\"\n", only);
		return 2;
	}
	return ok ? 0 : 1;
}
