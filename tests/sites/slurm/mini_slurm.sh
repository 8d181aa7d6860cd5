#!/bin/bash
# Process 1 of the login node (`mini_slurm.sh STATE ctl`) or of a compute node (`mini_slurm.sh STATE n1`), in namespaces
# of its own; when it ends, the kernel ends all that runs there. mini_slurm.py starts it and writes what STATE holds.
set -euo pipefail
state=$1 me=$2

# Puts what must keep its path back below a folder that was covered.
restore_below() {
    local number=0 path
    while read -r path; do
        number=$((number + 1))
        if [[ $path == "$1"/* ]]; then
            mkdir -p "$path"
            mount --rbind "/run/kept/$number" "$path"
        fi
    done < /run/kept/list
}

cover() {  # FOLDER MODE
    mount -t tmpfs -o "mode=$2" tmpfs "$1"
    restore_below "$1"
}

# Tells the pid that a process outside knows this one by, which the outermost /proc shows.
tell_pid() {
    local pid rest
    read -r pid rest < /run/host-proc/self/stat
    echo "$pid" > "$state/$me.pid.new"
    mv "$state/$me.pid.new" "$state/$me.pid"
}

become() {
    mount -t proc proc /proc
    echo "$me" > /proc/sys/kernel/hostname
    mount --bind "$state/hosts.$me" /etc/hosts
    mount -t tmpfs -o mode=1777 tmpfs /dev/shm
    cover /tmp 1777
}

if [[ $me != ctl ]]; then
    become
    slurmd -N "$me" -f "$state/slurm.conf"
    tell_pid
    sleep infinity &
    wait  # in which a shell also reaps what jobs leave behind
fi

mount -t tmpfs -o mode=755 tmpfs /run
mkdir -p /run/host-proc /run/kept /run/gpus /run/munge /run/slurmctld
mount --bind /proc /run/host-proc
cp "$state/kept" /run/kept/list
number=0
while read -r path; do
    number=$((number + 1))
    mkdir "/run/kept/$number"
    mount --rbind "$path" "/run/kept/$number"
done < /run/kept/list
become

# Homes are shared by all nodes, as on most clusters, and private to this one.
cover /root 755
cover /home 755
mount --bind "$state/passwd" /etc/passwd
mount --bind "$state/group" /etc/group
for user in alice bob; do install -d -m 700 -o "$user" -g "$user" "/home/$user"; done

ip link set lo up
ip link add br0 type bridge
ip address add 10.77.0.254/24 dev br0
ip link set br0 up
number=0
for node in $(< "$state/nodes"); do
    number=$((number + 1))
    ip netns add "$node"
    ip link add "v-$node" type veth peer name eth0 netns "$node"
    ip link set "v-$node" master br0 up
    ip -n "$node" address add "10.77.0.$number/24" dev eth0
    ip -n "$node" link set eth0 up
    ip -n "$node" link set lo up
done

mknod -m 666 /run/gpus/nvidia0 c 1 3  # SLURM wants character devices; these are /dev/null
mknod -m 666 /run/gpus/nvidia1 c 1 3

# One for all nodes: a unix socket is found by its path, whatever the network.
munged --force --key-file="$state/munge.key" --seed-file=/run/munge/seed --log-file="$state/munged.log"
slurmctld -f "$state/slurm.conf"
tell_pid
# Its input is a pipe that nobody writes to: it ends when the process that started it does, however that came about.
cat <&0 > /dev/null &
wait
