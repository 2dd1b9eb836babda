"""
The other end of ``Sandbox``: ``python -I -S confined.py FD`` runs a model's program, or tests of one, as the job in a
file descriptor says. Processes, each the parent of the next:

1. this one, which enters new namespaces and waits, with a limit of time;
2. where there are namespaces, the first process of the new one: all others in it end with it;
3. the program, without privileges and with limits.

What the program then does is in ``trial.py``.
"""
import ctypes
import json
import os
import resource
import signal
import sys
import time

SETUP_FAILED = 97
NEW_MOUNTS, NEW_IPC, NEW_NAMES, NEW_USERS, NEW_PIDS, NEW_NET = (1 << n for n in (17, 27, 26, 28, 29, 30))
READ_ONLY, NO_SUID, NO_DEVICES, REMOUNT, BIND, RECURSIVE, PRIVATE = 1, 2, 4, 32, 4096, 16384, 1 << 18
LOCKED = {2: 2, 4: 4, 8: 8, 1024: 1024, 2048: 2048, 4096: 1 << 21}  # flags of statvfs that a remount must repeat
SET_DEATH_SIGNAL, SET_DUMPABLE, SET_REAPER, SET_NO_NEW_PRIVILEGES = 1, 4, 36, 38
LIBRARIES = ('/lib', '/lib64', '/usr/lib', '/usr/lib64')
ROOT = '/proc'  # any folder that exists everywhere: only the new namespace sees what is mounted there
AWAITED = {signal.SIGCHLD, signal.SIGTERM}
libc = ctypes.CDLL(None, use_errno=True)


def call(name, *arguments):
    if getattr(libc, name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f'{name}: {os.strerror(number)}')


def mount(source, target, kind, flags, options=None):
    call('mount', *(x and os.fsencode(x) for x in (source, target, kind)), ctypes.c_ulong(flags), options)


def isolate():
    """Enter new namespaces, in which nothing is mounted but Python's own files and an empty folder."""
    flags = NEW_MOUNTS | NEW_IPC | NEW_NAMES | NEW_PIDS | NEW_NET
    own, group = os.geteuid(), os.getegid()
    if own != 0 or libc.unshare(flags) != 0:
        call('unshare', flags | NEW_USERS)
        for name, text in (('setgroups', 'deny'), ('uid_map', f'65534 {own} 1'), ('gid_map', f'65534 {group} 1')):
            with open(f'/proc/self/{name}', 'w', encoding='ascii') as f:
                f.write(text)
    mount(None, '/', None, RECURSIVE | PRIVATE)
    mount('tmpfs', ROOT, 'tmpfs', NO_SUID | NO_DEVICES, b'size=32m,nr_inodes=2048,mode=755')
    folders = {os.path.realpath(path) for path in sys.path if os.path.isdir(path)}
    for path in (*LIBRARIES, *sorted(folders)):
        if os.path.islink(path):
            os.makedirs(os.path.dirname(ROOT + path), exist_ok=True)
            os.symlink(os.readlink(path), ROOT + path)
        elif os.path.isdir(path) and not os.path.isdir(ROOT + path):
            os.makedirs(ROOT + path)
            mount(path, ROOT + path, None, BIND)
            has = os.statvfs(ROOT + path).f_flag
            kept = sum(flag for bit, flag in LOCKED.items() if has & bit)
            mount(None, ROOT + path, None, BIND | REMOUNT | READ_ONLY | NO_SUID | NO_DEVICES | kept)
    os.mkdir(f'{ROOT}/work')
    os.chmod(f'{ROOT}/work', 0o777)
    os.chroot(ROOT)
    os.chdir('/work')


def drop_privileges(uid):
    if os.geteuid() == 0:
        os.setgroups([])
        try:
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
        except OSError:  # of a container that has fewer users
            os.setresgid(65534, 65534, 65534)
            os.setresuid(65534, 65534, 65534)
    header, none = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
    call('capset', header, none)
    call('prctl', SET_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    call('prctl', SET_DUMPABLE, 0, 0, 0, 0)  # no process of this user may trace it


def limit(job):
    kinds = dict(
        CPU=max(1, int(job['seconds'] + 0.999)),
        AS=job['memory'],
        FSIZE=16 << 20,
        NOFILE=64,
        CORE=0,
        NPROC=job['processes'] + job['isolated']
    )
    for name, value in kinds.items():
        kind = getattr(resource, f'RLIMIT_{name}')
        most = resource.getrlimit(kind)[1]
        value = value if most == resource.RLIM_INFINITY else min(value, most)
        resource.setrlimit(kind, (value, value))


def supervise(until, cleans):
    """
    Return in a child. The parent waits for it, after ``until`` kills it, and exits with its status. If it ``cleans``,
    it first kills all else that was started; otherwise their namespace ends with it.
    """
    if cleans:
        libc.prctl(SET_REAPER, 1, 0, 0, 0)
    signal.pthread_sigmask(signal.SIG_BLOCK, AWAITED)
    child = os.fork()
    if child == 0:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, AWAITED)
        return
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # without a handler, the first process of a namespace ignores it
    os.closerange(0, 2)
    os.closerange(3, os.sysconf('SC_OPEN_MAX'))
    code, found = None, None
    while code is None and time.monotonic() < until and (found is None or found.si_signo != signal.SIGTERM):
        found = signal.sigtimedwait(AWAITED, max(0., until - time.monotonic()))
        code = reaped(child)
    if code is None:
        os.kill(child, signal.SIGKILL)
    while cleans and (left := children()):
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        for pid in left:
            os.waitpid(pid, 0)
    os._exit(124 if code is None else code if code >= 0 else 128 - code)


def reaped(child):
    """The exit code of the child, if it has ended; others that have ended are forgotten."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return None
        if pid == 0:
            return None
        if pid == child:
            return os.waitstatus_to_exitcode(status)


def children():
    """Of this process."""
    found = []
    for name in os.listdir('/proc'):
        if name.isdigit():
            try:
                with open(f'/proc/{name}/stat', encoding='utf-8', errors='replace') as f:
                    parent = f.read().rpartition(')')[2].split()[1]
            except OSError:  # it has ended
                continue
            if int(parent) == os.getpid():
                found.append(int(name))
    return found


def main(job):
    """Return in the process of the program."""
    try:
        os.umask(0o022)
        null, until = os.open(os.devnull, os.O_RDWR), time.monotonic() + job['wall']
        if job['isolated']:
            isolate()
        else:
            os.chdir(job['folder'])
        supervise(until, not job['isolated'])
        drop_privileges(job['uid'])
        if job['isolated']:
            call('prctl', SET_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
            supervise(until, False)
        limit(job)
    except OSError as error:
        os.write(2, f'{error}'.encode())
        os._exit(SETUP_FAILED)
    os.dup2(null, 2)
    low = 3
    for fd in sorted(job['fds']):
        os.closerange(low, fd)
        low = fd + 1
    os.closerange(low, os.sysconf('SC_OPEN_MAX'))
    sys.set_int_max_str_digits(0)
    os.environ.update(HOME=os.getcwd(), TMPDIR=os.getcwd())


if __name__ == '__main__':
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    import trial
    sys.path.pop(0)
    with open(int(sys.argv[1]), 'rb') as f:
        own = json.load(f)
    main(own)
    getattr(trial, own['mode'])(own)
