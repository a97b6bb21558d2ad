// SPDX-License-Identifier: Apache-2.0
//
// v3.c: protocol 3: what a command's words mean, who may do what, and the modules.
//
// Invariants:
// - Anybody who can connect may look. Only a server's owner and root change it.
// - Options are --key=value, key=value or --flag; an unknown one is an error.
#define _GNU_SOURCE
#include "mps.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// partition is who may make SM partitions; nobody gets any here.
static void partition(const char *verb, const struct args *a, struct reply *r) {
    (void)verb;
    struct server *v = server_named(option(a, "server"), r);
    if (v && owns(v, a, "SM-PARTITION CREATE", r)) refuse(r, "SM partitions are not simulated");
}

static const struct {
    const char *name, *verbs;
    void (*run)(const char *verb, const struct args *a, struct reply *r);
} modules[] = {
    {"server", "create delete list set get", v3_server},
    {"namespace", "create delete list set get", v3_space},
    {"client", "list terminate", v3_client},
    {"sm-partition", "create", partition},
};

static bool known_option(const char *key) {
    static const char *const keys[] = {
        "uid", "allowed-devices", "force", "format", "pinned-memory-limit",
        "active-thread-percentage", "client-priority", "server", "all", "device", "chunks"};
    for (unsigned i = 0; i < sizeof keys / sizeof *keys; i++)
        if (strcmp(keys[i], key) == 0) return true;
    return false;
}

const char *option(const struct args *a, const char *key) {
    for (unsigned i = 0; i < a->option_count; i++)
        if (strcmp(a->options[i].key, key) == 0) return a->options[i].value;
    return NULL;
}

bool flag(const struct args *a, const char *key) { return option(a, key) != NULL; }

// is_field compares names of fields, in which - and _ are the same.
bool is_field(const char *given, const char *field) {
    for (; *given && *field; given++, field++)
        if (*given != *field && !(*given == '_' && *field == '-')) return false;
    return *given == *field;
}

bool good_name(const char *name, struct reply *r) {
    size_t n = name ? strlen(name) : 0;
    if (n && n <= 64 && strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789_") == n) return true;
    refuse(r, "Invalid name '%s': lowercase letters, digits and underscores, at most 64", name ? name : "");
    return false;
}

bool owns(const struct server *v, const struct args *a, const char *what, struct reply *r) {
    if (a->uid == 0 || a->uid == v->uid) return true;
    refuse(r, "Insufficient privileges for UID %u. '%s' requires server owner.", (unsigned)a->uid, what);
    return false;
}

struct server *server_named(const char *name, struct reply *r) {
    for (struct server *v = mps.servers; v < mps.servers + MPS_SERVERS; v++)
        if (name && v->used && !v->deleted && strcmp(v->name, name) == 0) return v;
    refuse(r, "Server '%s' not found", name ? name : "");
    return NULL;
}

struct count {
    const struct space *space;
    unsigned n;
};

static void count(struct sim_client *c, pid_t pid, void *arg) {
    struct count *in = arg;
    (void)pid;
    in->n += !in->space || strcmp(c->mps.space, in->space->name) == 0;
}

// server_client_count counts the clients of a namespace, or of all with NULL.
unsigned server_client_count(struct server *v, const struct space *space) {
    struct count in = {space, 0};
    each_client(v, count, &in);
    return in.n;
}

// parse reads what follows module and verb.
static bool parse(char *at, const char *end, struct args *a, struct reply *r) {
    unsigned words = 0;
    for (char *next; at < end; at = next) {
        next = at + strlen(at) + 1;
        char *key = strncmp(at, "--", 2) == 0 ? at + 2 : at, *equals = strchr(key, '=');
        if (key == at && !equals) {
            if (words == 3) {
                refuse(r, "Too many arguments");
                return false;
            }
            a->words[words++] = at;
            continue;
        }
        if (equals) *equals = 0;
        if (!known_option(key) || a->option_count == sizeof a->options / sizeof *a->options) {
            refuse(r, "Unknown option '%s'", key);
            return false;
        }
        a->options[a->option_count].key = key;
        a->options[a->option_count++].value = equals ? equals + 1 : "";
    }
    return true;
}

static bool has_word(const char *list, const char *word) {
    size_t n = strlen(word);
    for (const char *at = list; n && (at = strstr(at, word)); at += n)
        if ((at == list || at[-1] == ' ') && (at[n] == ' ' || !at[n])) return true;
    return false;
}

static bool quit(uid_t uid, struct reply *r) {
    if (uid != 0 && uid != geteuid()) {
        refuse(r, "Insufficient privileges for UID %u. 'QUIT' requires the daemon's owner.", (unsigned)uid);
        return false;
    }
    mps.quitting = true;
    for (struct server *v = mps.servers; v < mps.servers + MPS_SERVERS; v++)
        if (v->used) server_end(v, MPS_END);
    return true;
}

// v3_command runs a packet of words; a line of the standard input is one too. True
// when the daemon's end is the answer.
bool v3_command(char *packet, size_t length, uid_t uid, struct reply *r) {
    for (size_t i = 0; i < length; i++)
        if (packet[i] == ' ' || packet[i] == '\n') packet[i] = 0;
    const char *end = packet + length, *module = packet;
    char *verb = packet + strlen(packet) + 1;
    struct args a = {.uid = uid};
    if (strcmp(module, "quit") == 0) return quit(uid, r);
    for (unsigned i = 0; i < sizeof modules / sizeof *modules; i++) {
        if (strcmp(modules[i].name, module) != 0) continue;
        if (verb < end && strcmp(verb, "help") == 0)
            say(r, "%s: %s\n", module, modules[i].verbs);
        else if (verb >= end || !has_word(modules[i].verbs, verb))
            refuse(r, "%s: verbs are %s", module, modules[i].verbs);
        else if (parse(verb + strlen(verb) + 1, end, &a, r))
            modules[i].run(verb, &a, r);
        return false;
    }
    refuse(r, "Unknown module '%s'", module);
    return false;
}
