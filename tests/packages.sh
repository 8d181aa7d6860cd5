#!/bin/sh
# What tests of optional parts need beside Python, from Debian's or Ubuntu's packages, of which a fresh machine may first
# need the list. Where they are missing and cannot be installed, those tests are skipped.
PATH="$PATH:/usr/sbin"

install() {
    DEBIAN_FRONTEND=noninteractive apt-get -qq --no-install-recommends install "$@" >/dev/null 2>&1
}

# need TITLE COMMAND PACKAGES: where the command is not there
need() {
    title=$1 command=$2
    shift 2
    command -v "$command" >/dev/null && return
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        install "$@" || { apt-get -qq update && install "$@"; } && return
    fi
    echo "$title is not here and could not be installed (which needs root and apt-get): its tests will be skipped."
}

need "SLURM, of which tests start three nodes," slurmctld slurmctld slurmd slurm-client munge iproute2 procps
need "A C compiler, with which tests make storage worse than it is," cc gcc libc6-dev
need "Prometheus, which records a search," prometheus prometheus
# Playwright's own browser would be a download. Ubuntu's package is a snap, which a container cannot run.
for browser in chromium chromium-browser google-chrome; do command -v $browser >/dev/null && exit; done
need "Chromium, in which tests look at pages," chromium-headless-shell chromium-headless-shell
