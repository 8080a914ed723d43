-- Requests, prefill and last change of all endpoints at one moment. A transaction would need memory.
return { redis.call('HGETALL', N), redis.call('HGETALL', P), redis.call('HGETALL', T) }
