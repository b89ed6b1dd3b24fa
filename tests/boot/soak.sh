#!/bin/sh
# SPDX-License-Identifier: MIT
# In the guest: clients that ask, hang up, send rubbish and lines without end, all at once.
#
#   soak.sh SOCKET TALK CLIENTS ROUNDS
#
# /run/soak/request.N and /run/soak/answer.N, N from 0 on, are requests and the answers that each must
# get, byte for byte. Prints one line per client: how many answers were right, and how many were not.
socket=$1
talk=$2
clients=$3
rounds=$4
folder=/run/soak
cases=$(ls "$folder"/request.* | wc -l)

# The server may be full; whoever is turned away, or finds the queue of connections full, comes back. A
# server that takes the request and says nothing, or something else, was wrong.
ask() {
    tries=0
    while [ "$tries" -lt 200 ]; do
        "$talk" "$socket" <"$folder/request.$2" >"$folder/got.$1"
        reached=$?
        if cmp -s "$folder/got.$1" "$folder/answer.$2"; then
            return 0
        fi
        [ "$reached" -eq 1 ] || grep -q '"name":"busy"' "$folder/got.$1" || break
        tries=$((tries + 1))
        sleep 0.2
    done
    cp "$folder/got.$1" "$folder/wrong.$1"
    return 1
}

client() {
    right=0 wrong=0 round=0
    while [ "$round" -lt "$rounds" ]; do
        case=$(((round + $1) % cases))
        case $(((round + $1) % 8)) in
        1) "$talk" "$socket" hangup <"$folder/request.$case" ;;
        3) head -c 300 /dev/urandom | "$talk" "$socket" hangup ;;
        5) head -c 3000000 /dev/zero | tr '\0' a | "$talk" "$socket" >/dev/null ;;
        6) printf '{"id":"half","prompt":"The' | "$talk" "$socket" >/dev/null ;;
        esac
        if ask "$1" "$case"; then right=$((right + 1)); else wrong=$((wrong + 1)); fi
        round=$((round + 1))
    done
    echo "client $1 right $right wrong $wrong"
}

number=0
while [ "$number" -lt "$clients" ]; do
    client "$number" &
    number=$((number + 1))
done
wait
