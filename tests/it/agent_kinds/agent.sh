#!/bin/sh
# Agent of the scenarios as a command, which reads a turn and writes events as lines of JSON.

IFS= read -r turn

# Text of the turn. It remains escaped as in JSON, since it is only returned.
rest=${turn#*'"text":"'}
text=
while :; do
    piece=${rest%%\"*}
    rest=${rest#*\"}
    text=$text$piece
    # A quotation mark after an odd number of backslashes belongs to the text.
    backslashes=${piece##*[!\\]}
    [ $((${#backslashes} % 2)) -eq 1 ] || break
    text=$text\"
done
command=${text%% *}
case $text in
*' '*) rest=${text#* } ;;
*) rest= ;;
esac
case $turn in
*'"state":"TASK_STATE_INPUT_REQUIRED"'*) state=input ;;
*'"state":"TASK_STATE_AUTH_REQUIRED"'*) state=auth ;;
*) state= ;;
esac

send() { printf '%s\n' "$1"; }
working() { send '{"type":"status"}'; }
ends() { send '{"type":"'"$1"'","message":"'"$2"'"}'; }
artifact() { send '{"type":"artifact","name":"'"$1"'","text":"'"$2"'","last":true}'; }
# Replaces the shell, so that a signal ends it at once.
hang() { exec sleep 1000; }

case $command in
!authorise) ends auth 'Authorise this elsewhere.' ;;
!burst)
    padding=$(printf '%01017d' 0)
    n=0
    while [ "$n" -lt "$rest" ]; do
        printf '{"type":"artifact","name":"burst","text":"%06d %s"}\n' "$n" "$padding"
        n=$((n + 1))
    done
    ;;
!wait)
    working
    ends ask 'go on'
    ;;
!silent) hang ;;
!done)
    send '{"type":"status","message":"nearly"}'
    ends complete 'done'
    ;;
!more)
    working
    send '{"type":"artifact","text":"'"$rest"'"}'
    ends ask 'more?'
    ;;
*)
    if [ "$state" = input ] && [ "$text" = again ]; then
        ends ask 'again?'
        exit
    fi
    case $state in
    input)
        working
        artifact answer "$text"
        exit
        ;;
    auth)
        working
        artifact authorised "$text"
        exit
        ;;
    esac
    case $command in
    /stream)
        working
        chunks=${rest%% *}
        pause=${rest#* }
        last=false
        n=1
        while [ "$n" -le "$chunks" ]; do
            [ "$n" -eq 1 ] || sleep "$(printf '0.%03d' "$pause")"
            [ "$n" -lt "$chunks" ] || last=true
            send '{"type":"artifact","name":"stream","text":"chunk '"$n of $chunks"'\n","last":'$last'}'
            n=$((n + 1))
        done
        ;;
    /slow)
        send '{"type":"status","message":"Working for '"$rest"' s."}'
        sleep "$rest"
        artifact slow "Worked for $rest s."
        ;;
    /ask) ends ask "$rest" ;;
    /auth) ends auth 'Authorise this elsewhere, then send any message.' ;;
    /fail) ends fail "$rest" ;;
    /reject) ends reject "$rest" ;;
    /message) ends message "$rest" ;;
    /parts)
        text='{"text":"A text part."}'
        raw='{"raw":"QSByYXcgcGFydC4K","mediaType":"text/plain","filename":"raw.txt"}'
        url='{"url":"https://example.com/map.png","mediaType":"image/png","filename":"map.png"}'
        data='{"data":{"a":"data part","numbers":[1,2.5],"nothing":null}}'
        send '{"type":"artifact","name":"parts","parts":['"$text,$raw,$url,$data"'],"last":true}'
        ;;
    # Not an event, as a failure of the command.
    /panic | !error) send 'the password is swordfish' ;;
    /hang)
        working
        hang
        ;;
    *) artifact echo "$text" ;;
    esac
    ;;
esac
